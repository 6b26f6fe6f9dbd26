"""Settings that contradict each other are refused by name, with the values and the way out."""

import pytest

from learner_lab import CRITICS
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.contradictions import NEEDS, WARM_UPS
from stormsail.core.errors import ConfigError

RATE = "ppo.optimizer_lr_max"
LIMITED = {
    "risk.cvar_use_constraint": True, "risk.cvar_limit": -0.1, "validation.episodes": 200,
}  # fmt: skip
CONTRADICTIONS = {
    "rate bounds the wrong way round": (
        {RATE: 1e-6},
        "`ppo.optimizer_lr_max` must be at least `ppo.optimizer_lr_min`; found 1e-06 and 5e-06. "
        "Raise `ppo.optimizer_lr_max`, or lower `ppo.optimizer_lr_min`.",
    ),
    "a rate above its bound": (
        {"ppo.learning_rate": 3e-4, RATE: 1e-4},
        "`ppo.learning_rate` must be at most `ppo.optimizer_lr_max`; found 0.0003 and 0.0001. "
        "Lower `ppo.learning_rate`, or raise `ppo.optimizer_lr_max`.",
    ),
    "a rate below its bound": (
        {"ppo.learning_rate": 1e-6},
        "`ppo.learning_rate` must be at least `ppo.optimizer_lr_min`; found 1e-06 and 5e-06. "
        "Raise `ppo.learning_rate`, or lower `ppo.optimizer_lr_min`.",
    ),
    "a penalty without a target": (
        {"kl.target_kl": None, "kl.penalty": True},
        "`kl.penalty` must be false while `kl.target_kl` is unset; found true. Set `kl.target_kl` "
        "to the divergence that the penalty should hold, for example 0.02, or leave `kl.penalty` "
        "out.",
    ),
    "a penalty with a target of nothing": (
        {"kl.target_kl": 0.0, "kl.penalty": True},
        "`kl.penalty` must be false while `kl.target_kl` is 0.0; found true. Set `kl.target_kl` "
        "to the divergence that the penalty should hold, for example 0.02, or leave `kl.penalty` "
        "out.",
    ),
    "a clip mode without a range": (
        {"value_clip.distributional_vf_clip_mode": "per_quantile"},
        '`value_clip.distributional_vf_clip_mode` must be "mean_only" while '
        '`value_clip.clip_range_vf` is unset; found "per_quantile". Set '
        "`value_clip.clip_range_vf` to the largest move of a prediction, for example 0.2, or "
        "leave `value_clip.distributional_vf_clip_mode` out.",
    ),
    "environments normalised where nothing is": (
        {"ppo.normalize_advantage": False, "ppo.normalize_advantage_per_env": True},
        "`ppo.normalize_advantage_per_env` must be false while `ppo.normalize_advantage` is "
        "false; found true. Set `ppo.normalize_advantage` to true, or leave "
        "`ppo.normalize_advantage_per_env` out.",
    ),
    "a bound on advantages beside a limit": (
        {**LIMITED, "ppo.adv_clip": 5.0},
        "`ppo.adv_clip` must be left out while settings of `risk` act: a bound on advantages cuts "
        "off the rare losses that a limit is about, and nothing else; found 5.0. Leave "
        "`ppo.adv_clip` out; set `ppo.advantage_scale` to slow, and lower `ppo.learning_rate` if "
        "single updates are too large.",
    ),
    "a bound on advantages beside a penalty": (
        {"risk.cvar_weight": 0.2, "ppo.advantage_scale": "rollout", "ppo.adv_clip": 5.0},
        "`ppo.adv_clip` must be left out while settings of `risk` act: a bound on advantages cuts "
        "off the rare losses that a limit is about, and nothing else; found 5.0. Leave "
        "`ppo.adv_clip` out; set `ppo.advantage_scale` to slow, and lower `ppo.learning_rate` if "
        "single updates are too large.",
    ),
    "a slow scale of each environment": (
        {"ppo.advantage_scale": "slow", "ppo.normalize_advantage_per_env": True},
        "`ppo.normalize_advantage_per_env` must be false while `ppo.advantage_scale` is slow: one "
        "environment by itself rarely meets a rare loss, so each would have a scale of its own for "
        "it; found true. Leave `ppo.normalize_advantage_per_env` out, or set "
        "`ppo.advantage_scale` to rollout.",
    ),
    "a rule for rollouts without spread beside a limit": (
        {**LIMITED, "ppo.advantage_mode": "zero"},
        '`ppo.advantage_mode` must be "floor" while `ppo.advantage_scale` is slow, which it is '
        "where settings of `risk` act: slow moments have a spread where a rollout has none; found "
        '"zero". Leave `ppo.advantage_mode` out, or set `ppo.advantage_scale` to rollout.',
    ),
    "frozen before the end of the warm-up": (
        {"returns.freeze_after": 6},
        "`returns.freeze_after` must be above `returns.warmup_updates`: statistics would be "
        "frozen while they still follow each update; found 6 and 6. Raise "
        "`returns.freeze_after`, or lower `returns.warmup_updates`.",
    ),
    "a share of attacked sequences where all are": (
        {"adversary.mode": "kl_reg", "adversary.adversarial_ratio": 0.3},
        '`adversary.adversarial_ratio` must be 0.5 while `adversary.mode` is "kl_reg"; found 0.3. '
        "Set `adversary.mode` to `mixed_batch` or `rollout`, or leave "
        "`adversary.adversarial_ratio` out.",
    ),
    "losses to raise where rollouts are forged": (
        {"adversary.mode": "rollout", "adversary.attack_value": False},
        '`adversary.attack_value` must be true while `adversary.mode` is "rollout"; found false. '
        "Set `adversary.mode` to `mixed_batch`, or leave `adversary.attack_value` out.",
    ),
    "a penalty where rollouts are forged": (
        {"adversary.mode": "rollout", "adversary.robust_kl_coef": 0.3},
        '`adversary.robust_kl_coef` must be left out while `adversary.mode` is "rollout": nothing '
        "is added to the loss; found 0.3. Leave `adversary.robust_kl_coef` out, or set "
        "`adversary.mode` to `kl_reg`.",
    ),
    "a limit on the tail of forged episodes": (
        {**LIMITED, "adversary.mode": "rollout"},
        "`adversary.mode` must not be `rollout` beside settings of `risk`: the tail that they "
        "watch is that of the episodes of training, and in some of these the agent would be "
        'misled; found "rollout". Set `adversary.mode` to "kl_reg", or leave the settings of '
        "`risk` out.",
    ),
    "an update compiled for a CPU on a GPU": (
        {"compile_update": True, "device": "cuda"},
        '`compile_update` must be false while `device` is "cuda": it compiles for a CPU, and a GPU '
        "records its updates (`cuda_graphs`); found true. Leave `compile_update` out, or set "
        '`device` to "cpu".',
    ),
    "steps of an attack of one step": (
        {"adversary.mode": "kl_reg", "adversary.attack_method": "fgsm", "adversary.attack_lr": 0.1},
        '`adversary.attack_lr` must be unset while `adversary.attack_method` is "fgsm"; found 0.1. '
        "Set `adversary.attack_method` to `pgd` or `sgld`, which take several steps, or leave "
        "`adversary.attack_lr` out.",
    ),
    "an end of a constant radius": (
        {"adversary.mode": "kl_reg", "adversary.epsilon_final": 0.01},
        '`adversary.epsilon_final` must be 0.05 while `adversary.epsilon_schedule` is "constant"; '
        "found 0.01. Set `adversary.epsilon_schedule` to `linear` or `cosine`, or leave "
        "`adversary.epsilon_final` out.",
    ),
    "layers of no memory": (
        {"network.memory": "none", "network.num_layers": 2},
        '`network.num_layers` must be 1 while `network.memory` is "none"; found 2. Set '
        "`network.memory` to `lstm` or `gru`, or leave `network.num_layers` out.",
    ),
    "a learned start of no memory": (
        {"network.memory": "none", "network.learn_initial_state": True},
        '`network.learn_initial_state` must be false while `network.memory` is "none"; found '
        "true. Set `network.memory` to `lstm` or `gru`, or leave `network.learn_initial_state` "
        "out.",
    ),
    "a last minibatch of one column": (
        {"ppo.n_envs": 64, "ppo.n_steps": 128, "ppo.batch_size": 21},
        "`ppo.batch_size` must not leave a last minibatch of one sequence: it would take a step "
        "as large as those of 21; found 21 of the 64 sequences that `ppo.n_envs`, `ppo.n_steps` "
        "and `ppo.sequence_length` give. Set `ppo.batch_size` to 16 or 32, or change "
        "`ppo.n_envs`.",
    ),
    "a last minibatch of one part of a column": (
        {"ppo.n_envs": 5, "ppo.n_steps": 20, "ppo.sequence_length": 4, "ppo.batch_size": 12},
        "`ppo.batch_size` must not leave a last minibatch of one sequence: it would take a step "
        "as large as those of 12; found 12 of the 25 sequences that `ppo.n_envs`, `ppo.n_steps` "
        "and `ppo.sequence_length` give. Set `ppo.batch_size` to 5 or 25, or change "
        "`ppo.n_envs`.",
    ),
    "an end below the floor": (
        {"entropy.ent_coef_final": 0.001, "entropy.ent_coef_min": 0.002},
        "`entropy.ent_coef_final` must be at least `entropy.ent_coef_min`, below which the "
        "coefficient never is; found 0.001 and 0.002. Lower `entropy.ent_coef_min`, leave it out, "
        "or raise `entropy.ent_coef_final`.",
    ),
    "a start below the floor": (
        {"entropy.ent_coef": 0.0, "entropy.ent_coef_min": 0.0005},
        "`entropy.ent_coef` must be at least `entropy.ent_coef_min`, below which the coefficient "
        "never is; found 0.0 and 0.0005. Lower `entropy.ent_coef_min`, leave it out, or raise "
        "`entropy.ent_coef`.",
    ),
    "a boost of nothing": (
        {"entropy.ent_coef": 0.0, "entropy.entropy_boost_factor": 1.5},
        "`entropy.entropy_boost_factor` must be 1.0 while `entropy.ent_coef` is 0.0; found 1.5. "
        "Set `entropy.ent_coef` above 0, which the boost multiplies, or leave "
        "`entropy.entropy_boost_factor` out.",
    ),
    "a warm-up of no updates": (
        {"ppo.clip_range_warmup": 0.4},
        "`ppo.clip_range_warmup` must be left out while `ppo.clip_range_warmup_updates` is 0: no "
        "update would use it; found 0.4. Set `ppo.clip_range_warmup_updates` to the length of the "
        "warm-up, or leave `ppo.clip_range_warmup` out.",
    ),
    "targets longer than a rollout": (
        {"ppo.n_steps": 128, "target.steps": 129},
        "`target.steps` must be at most `ppo.n_steps`, the length of a rollout; found 129 and "
        "128. Lower `target.steps`, raise `ppo.n_steps`, or set `target.kind` to `mc` for returns "
        "to the end of the rollout.",
    ),
}
"""Settings, and the words of their refusal."""

OFF = {
    "optimizer.optimizer_class": "AdamW",
    "optimizer.noise_scale": "rms_update",
    "vgs.enabled": True,
    "kl.target_kl": None,
    "value_clip.clip_range_vf": None,
    "ppo.normalize_advantage": False,
    "ppo.vf_bad_explained_scale": 1.0,
    "entropy.ent_coef_plateau_window": 0,
    "entropy.entropy_boost_factor": 1.0,
    "entropy.ent_coef": 0.0,
    "observation.normalise": False,
    "bc.awr_coef": 0.0,
    "network.memory": "none",
    "critic.kind": "categorical",
    "risk.form": "budget",
    "target.kind": "nstep",
    "adversary.mode": "kl_reg",
    "adversary.attack_method": "fgsm",
    "adversary.epsilon_schedule": "constant",
}
ON = {
    "optimizer.optimizer_class": "UPGDW",
    "optimizer.noise_scale": "rms_grad",
    "vgs.enabled": False,
    "kl.target_kl": 0.02,
    "value_clip.clip_range_vf": 0.2,
    "ppo.normalize_advantage": True,
    "ppo.vf_bad_explained_scale": 0.5,
    "entropy.ent_coef_plateau_window": 24,
    "entropy.entropy_boost_factor": 1.5,
    "entropy.ent_coef": 0.01,
    "observation.normalise": True,
    "bc.awr_coef": 0.1,
    "network.memory": "gru",
    "critic.kind": "quantile",
    "risk.form": "critic",
    "target.kind": "lambda_mixture",
    "adversary.mode": "mixed_batch",
    "adversary.attack_method": "sgld",
    "adversary.epsilon_schedule": "linear",
}
BESIDE = {"vgs.enabled": {"vgs.statistic": "norm"}}
"""What a switch must meet to stand in the way."""
ASKED_FOR = {
    "optimizer.compiled": True,
    "kl.penalty": True,
    "value_clip.distributional_vf_clip_mode": "mean_and_variance",
    "value_clip.distributional_vf_clip_variance_factor": 3.0,
    "value_clip.vf_clip_units": "raw",
    "value_clip.vf_clip_warmup_updates": 5,
    "value_clip.vf_clip_threshold_ev": 0.1,
    "ppo.normalize_advantage_per_env": True,
    "ppo.advantage_mode": "skip",
    "ppo.advantage_scale": "slow",
    "ppo.adv_clip": 5.0,
    "ppo.vf_bad_explained_floor": 0.1,
    "entropy.ent_coef_plateau_tolerance": 0.1,
    "entropy.ent_coef_plateau_min_updates": 3,
    "entropy.entropy_boost_cap": 2.0,
    "entropy.bad_explained_patience": 5,
    "entropy.entropy_boost_factor": 2.0,
    "observation.obs_stats_update": "online",
    "bc.bc_final_coef": 0.01,
    "network.num_layers": 3,
    "network.learn_initial_state": True,
    "critic.monotone_quantiles": True,
    "critic.levels": "tail",
    "risk.cvar_margin": 2.0,
    "risk.cvar_trust": "full",
    "risk.cvar_floor": True,
    "target.mixture_lambda": 0.9,
    "adversary.adversarial_ratio": 0.3,
    "adversary.attack_policy": False,
    "adversary.attack_value": False,
    "adversary.attack_steps": 5,
    "adversary.attack_lr": 0.02,
    "adversary.epsilon_final": 0.01,
}
PAIRS = [(path, rule.switch) for rule in NEEDS for path in rule.settings]


def refusal(**changes):
    with pytest.raises(ConfigError) as caught:
        TrainConfig().replace(**changes)
    return caught.value


@pytest.mark.refusal
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_names_both_settings_and_the_way_out(name):
    changes, words = CONTRADICTIONS[name]
    assert str(refusal(**changes)) == f"{words} [config-inconsistent]"


@pytest.mark.refusal
@pytest.mark.parametrize(("path", "switch"), PAIRS)
def test_what_asks_for_something_needs_its_switch(path, switch):
    value = ASKED_FOR[path]
    error = refusal(**{switch: OFF[switch], path: value, **BESIDE.get(switch, {})})
    assert f"`{path}` must be" in error.wrong
    assert f"while `{switch}` is" in error.wrong
    assert switch in error.remedy
    assert path in error.remedy
    assert error.code == "config-inconsistent"
    TrainConfig().replace(**{switch: ON[switch], path: value})


def test_every_pair_is_tried():
    assert set(ASKED_FOR) == {path for path, _ in PAIRS}
    assert set(OFF) == set(ON) == {switch for _, switch in PAIRS}


@pytest.mark.refusal
def test_several_contradictions_are_told_at_once():
    error = refusal(
        **{"kl.target_kl": None, "kl.penalty": True, RATE: 1e-6, "returns.freeze_after": 2}
    )
    assert error.found == "3 contradictions"
    assert [f"({number})" in error.remedy for number in (1, 2, 3, 4)] == [True] * 3 + [False]
    for path in ("kl.penalty", "kl.target_kl", RATE, "ppo.optimizer_lr_min", "returns.freeze_after",
                 "returns.warmup_updates"):  # fmt: skip
        assert f"`{path}`" in error.remedy


@pytest.mark.refusal
@pytest.mark.parametrize(("first", "last", "updates"), WARM_UPS)
def test_a_warm_up_value_needs_updates_unless_it_changes_nothing(first, last, updates):
    refusal(**{first: 0.9})
    TrainConfig().replace(**{first: 0.9, last: 0.9})
    TrainConfig().replace(**{first: 0.9, updates: 3})


@pytest.mark.parametrize(
    "changes",
    [
        {"ppo.learning_rate_final": 0.0},  # the floor holds the end: that is what it is for
        {RATE: 3e-4},
        {RATE: 1e-3, "ppo.learning_rate_final": 1e-2},
        {RATE: 5e-6, "ppo.learning_rate": 5e-6},
        {"kl.target_kl": None},
        {"kl.target_kl": None, "kl.kl_early_stop": False},
        {"entropy.ent_coef": 0.0},
        {"entropy.ent_coef": 0.0002},
        {"entropy.ent_coef_final": 0.0},
        {"entropy.ent_coef_min": 0.004},
        {"entropy.ent_coef_final": 0.002, "entropy.ent_coef_min": 0.002},
        {"returns.freeze_after": 7},
        {"returns.freeze_after": 1, "returns.warmup_updates": 0},
        {"network.memory": "none", "network.lstm_hidden_size": 8},
        {"network.memory": "none", "network.enable_critic_lstm": True},  # an encoder of their own
        {"ppo.batch_size": 20},  # 64 = 3 x 20 + 4
        {"ppo.batch_size": 1},
        {"ppo.n_envs": 1, "ppo.batch_size": 1},
        {"ppo.n_steps": 16},  # shorter than the default targets, which then end with it
        {"target.steps": 128},
        {"target.steps": 500, "target.kind": "td"},
        {"vgs.alpha": 0.2},  # a number that waits for its switch asks for nothing
        {"device": "cuda:1"},  # of another machine
    ],
)
def test_what_is_no_contradiction_is_accepted(changes):
    TrainConfig().replace(**changes)


@pytest.mark.refusal
@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cuda:-1", "gpu", "", "CPU", "cpu "])
def test_a_name_of_no_device_is_refused_with_those_there_are(name):
    error = refusal(device=name)
    assert error.code == "config-value"
    assert error.wrong == "`device`: must be `cpu`, `cuda`, or one GPU of several such as `cuda:1`"


@pytest.mark.parametrize("critic", CRITICS)
def test_every_kind_of_critic_may_clip(critic):
    TrainConfig().replace(**CRITICS[critic], **{"value_clip.clip_range_vf": 0.2})


def test_a_rollout_scale_beside_a_limit_may_be_chosen():
    chosen = {**LIMITED, "ppo.advantage_scale": "rollout", "ppo.advantage_mode": "zero"}
    assert TrainConfig().replace(**chosen).ppo.advantage_scale == "rollout"
