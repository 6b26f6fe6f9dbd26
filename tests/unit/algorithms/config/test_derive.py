"""Open settings are a function of task, budget and kind of device, and of nothing else."""

import os
import warnings

import pytest
import torch

from learner_lab import CLASSES, FEATURES
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import (
    DERIVED,
    derive,
    in_parts,
    open_settings,
    require_derived,
)
from stormsail.algorithms.ppo import Ppo
from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.modules.agent import ActionSpec, Agent, AgentSpec

LIMIT = {"risk__cvar_use_constraint": True, "validation__episodes": 200}


def config(**changes):
    return TrainConfig().replace(**{name.replace("__", "."): v for name, v in changes.items()})


def values(derived):
    ppo = derived.ppo
    return ppo.n_envs, ppo.n_steps, ppo.n_epochs, ppo.batch_size, ppo.learning_rate


@pytest.mark.parametrize(
    ("task", "device", "expected"),
    [
        ("market", "cpu", (64, 128, 4, 16, 3e-4)),
        ("market", "cuda:1", (128, 128, 4, 32, 3e-4)),  # 1,000,000 / (256 * 128) is 30 updates
        ("CartPole-v1", "cpu", (16, 128, 4, 4, 1e-3)),
        ("gym:Acrobot-v1", "cuda", (16, 128, 4, 4, 1e-3)),
    ],
)
def test_sizes_follow_task_and_device(task, device, expected):
    assert values(derive(config(task__name=task, device=device))) == expected


@pytest.mark.parametrize(
    ("steps", "rows"),
    # 16 environments: 40 updates of 128 rows need 81,920 steps, of 64 rows 40,960, of 32 20,480
    [(81_920, 128), (81_919, 64), (40_960, 64), (40_959, 32), (20_479, 16), (10, 16)],
)
def test_a_small_budget_has_short_rollouts(steps, rows):
    derived = derive(config(task__name="CartPole-v1", ppo__total_steps=steps))
    assert derived.ppo.n_steps == rows


@pytest.mark.parametrize(
    ("changes", "compiles"),
    [
        ({}, True),  # a million steps, as of a run for which no budget is given
        ({"ppo__total_steps": 999_999}, False),
        ({"ppo__total_steps": 1_000_000}, True),
        ({"compile_update": False}, False),
        ({"precision": "bf16"}, False),
        ({"precision": "float32"}, True),
        ({"device": "cuda"}, False),
        ({"ppo__total_steps": 10, "compile_update": True}, True),
    ],
)
def test_a_long_run_on_a_cpu_compiles_its_updates(changes, compiles):
    assert derive(config(**changes)).compile_update is compiles


@pytest.mark.parametrize(
    ("steps", "given", "compiles"),
    [(999_999, None, False), (1_000_000, None, True), (10, True, True), (1_000_000, False, False)],
)
def test_a_run_in_parts_compiles_where_a_part_is_long_enough(steps, given, compiles):
    """Every part is begun anew, as rounds of a population and rungs of a search are."""
    changes = {"ppo__total_steps": 10**8} | ({} if given is None else {"compile_update": given})
    assert derive(in_parts(config(**changes), steps)).compile_update is compiles


def test_given_values_stay_and_the_others_follow_them():
    derived = derive(config(ppo__n_envs=6, ppo__n_steps=10, ppo__total_steps=601, threads=3))
    # 6 columns have no quarter, so thirds: 2. 601 steps are 11 rollouts of 60.
    assert values(derived) == (6, 10, 4, 2, 3e-4)
    assert derived.threads == 3
    assert derived.entropy.ent_coef_decay_steps == 10  # at its end in the last of them
    assert (derived.bc.bc_warmup_steps, derived.bc.bc_decay_steps) == (120, 481)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ppo__n_envs": 5}, (128, 5)),
        ({"ppo__n_envs": 10}, (128, 5)),
        ({"ppo__n_envs": 64, "ppo__sequence_length": 32}, (128, 64)),  # 256 sequences, a quarter
        ({"ppo__n_envs": 8, "ppo__sequence_length": 48}, (144, 6)),  # 3 sequences of 48 a column
        ({"ppo__n_envs": 64, "ppo__microbatch_size": 20}, (128, 32)),  # 16 is too few, 32 fits
    ],
)
def test_a_minibatch_is_an_equal_part_of_all_sequences(changes, expected):
    ppo = derive(config(**changes)).ppo
    assert (ppo.n_steps, ppo.batch_size) == expected
    sequences = ppo.n_envs * ppo.n_steps // (ppo.sequence_length or ppo.n_steps)
    assert sequences % ppo.batch_size == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1000, 4000)),  # constant for a fifth of the run, falling to its end
        ({"bc__bc_warmup_steps": 4000}, (4000, 1000)),
        ({"bc__bc_decay_steps": 100}, (1000, 100)),
        ({"bc__bc_warmup_steps": 9000}, (9000, 0)),
    ],
)
def test_imitation_falls_from_a_fifth_of_the_run_to_its_end(given, expected):
    bc = derive(config(ppo__total_steps=5000, **given)).bc
    assert (bc.bc_warmup_steps, bc.bc_decay_steps) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (32, 4)),  # 128 samples
        ({"ppo__n_steps": 100}, (25, 8)),  # 64 sequences: 6 hold 128 samples, 8 leave no rest
        ({"ppo__n_envs": 2}, (32, 2)),  # 8 sequences: 128 samples would be half of them
        ({"ppo__sequence_length": 8}, (8, 16)),
        ({"ppo__batch_size": 4}, (128, 4)),  # given, so it counts environments
        ({"task__name": "market"}, (128, 16)),
    ],
)
def test_small_tasks_learn_from_short_sequences_and_small_minibatches(changes, expected):
    ppo = derive(config(**{"task__name": "gym:CartPole-v1", **changes})).ppo
    assert (ppo.sequence_length, ppo.batch_size) == expected


@pytest.mark.parametrize(
    ("steps", "envs", "rows"), [(327_680, 64, 128), (327_679, 32, 128), (50_000, 16, 64)]
)
def test_a_small_budget_on_the_market_has_fewer_environments_first(steps, envs, rows):
    ppo = derive(config(ppo__total_steps=steps)).ppo
    assert (ppo.n_envs, ppo.n_steps) == (envs, rows)


def test_a_decay_that_begins_at_a_plateau_is_left_to_the_run():
    waiting = derive(config(entropy__ent_coef_plateau_window=24))
    assert waiting.entropy.ent_coef_decay_steps is None
    assert open_settings(waiting) == ()


def test_the_rate_keeps_to_given_bounds():
    assert derive(config(ppo__optimizer_lr_max=1e-4)).ppo.learning_rate == 1e-4
    assert derive(config(ppo__optimizer_lr_min=1e-3)).ppo.learning_rate == 1e-3


def test_the_machine_has_no_say(monkeypatch):
    """Neither its cores nor its memory nor its environment is even read."""
    expected = [derive(config(device=device)) for device in ("cpu", "cuda")]

    def never(*_arguments):
        raise AssertionError("the machine was consulted")

    for name in ("cpu_count", "sched_getaffinity", "sysconf", "getenv", "getloadavg"):
        monkeypatch.setattr(os, name, never)
    for name in ("get_num_threads", "get_num_interop_threads"):
        monkeypatch.setattr(torch, name, never)
    monkeypatch.setattr(torch.cuda, "is_available", never)
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "7"})
    assert [derive(config(device=device)) for device in ("cpu", "cuda")] == expected
    assert [one.threads for one in expected] == [1, 1]


def test_deriving_twice_is_deriving_once():
    derived = derive(TrainConfig())
    assert derive(derived) is derived
    assert open_settings(TrainConfig()) == DERIVED
    assert open_settings(derived) == ()


def test_an_open_setting_stays_open_through_every_round_trip(tmp_path):
    open_config = config(ppo__n_envs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = open_config.to_toml()
    assert "n_envs = 4" in text
    assert "n_steps" not in text
    (tmp_path / "run.toml").write_text(text)
    again = TrainConfig.load(tmp_path / "run.toml")
    assert again == open_config
    assert again.config_hash() == open_config.config_hash()
    assert open_settings(again) == tuple(path for path in DERIVED if path != "ppo.n_envs")
    assert open_config.replace(**{"ppo.n_envs": None}) == TrainConfig()


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("value", "rule"),
    [(0, "greater than or equal to 1"), ("4", "a whole number"), (True, "a whole number"),
     (1.5, "a valid integer, got a number with a fractional part")],
)  # fmt: skip
def test_an_open_setting_has_the_rules_of_its_number(value, rule):
    with pytest.raises(ConfigError) as caught:
        config(ppo__n_envs=value)
    assert caught.value.wrong == f"`ppo.n_envs` must be {rule}"


@pytest.mark.refusal
def test_rules_across_settings_wait_for_derived_values_and_are_then_held():
    late = config(task__name="CartPole-v1", ppo__batch_size=17)  # no rule yet: n_envs is open
    with pytest.raises(ConfigError) as caught:
        derive(late)
    assert caught.value.wrong == (
        "`ppo.batch_size` must be at most the 16 sequences of a rollout, not 17"
    )
    with pytest.raises(ConfigError):  # both given: at once
        config(ppo__learning_rate=1e-6, ppo__optimizer_lr_min=1e-5)


@pytest.mark.refusal
def test_a_learner_refuses_open_settings_by_name():
    open_config = derive(TrainConfig()).replace(**{"ppo.n_envs": None, "threads": None})
    with pytest.raises(ConfigError) as caught:
        require_derived(open_config)
    assert str(caught.value) == (
        "`threads`, `ppo.n_envs` must have a value before anything is computed; found nothing. "
        "Pass `derive(config)` from `stormsail.algorithms.config.derive`; `train` does it itself. "
        "[config-value]"
    )
    generators = Generators(0)
    spec = AgentSpec(observation_names=FEATURES, actions=ActionSpec.of(CLASSES))
    agent = Agent(spec, generators.stream("weights"))
    with pytest.raises(ConfigError, match="must have a value before"):
        Ppo(None, agent, open_config, generators)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "rollout"),
        ({"risk__cvar_limit": -0.1}, "rollout"),  # watched only
        ({**LIMIT, "risk__cvar_limit": -0.1}, "slow"),
        ({"risk__cvar_weight": 0.1}, "slow"),
        ({"risk__cvar_weight": 0.1, "risk__cvar_use_penalty": False}, "rollout"),
        ({"risk__cvar_weight": 0.1, "ppo__normalize_advantage": False}, "rollout"),
        ({"risk__cvar_weight": 0.1, "ppo__advantage_scale": "rollout"}, "rollout"),
        ({"ppo__advantage_scale": "slow"}, "slow"),
    ],
)
def test_advantages_have_a_slow_scale_where_risk_acts(changes, expected):
    assert derive(config(**changes)).ppo.advantage_scale == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "budget"),
        ({"risk__cvar_limit": -0.1}, "budget"),  # only watched
        ({**LIMIT, "risk__cvar_limit": -0.1}, "critic"),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_kp": 1.0}, "critic"),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_weight": 0.1}, "budget"),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_trace": 0.9}, "budget"),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_winsor_pct": 0.1}, "budget"),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_policy_mode": "episode"}, "budget"),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_use_predicted_for_dual": True}, "budget"),
        (
            {**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_weight": 0.1,
             "risk__cvar_use_penalty": False},
            "critic",
        ),
        (
            {**LIMIT, "risk__cvar_limit": -0.1, "risk__cvar_quantity": "step",
             "risk__cvar_policy_mode": "state"},
            "budget",
        ),
        ({**LIMIT, "risk__cvar_limit": -0.1, "risk__form": "budget"}, "budget"),
    ],
)  # fmt: skip
def test_a_limit_on_episodes_is_kept_by_the_critic_of_the_shortfall(changes, expected):
    derived = derive(config(**changes))
    assert derived.risk.form == expected
    assert derived.values_all_actions == (expected == "critic")


def test_all_actions_are_valued_where_the_policy_learns_from_them():
    derived = derive(config(ppo__policy_gradient="all_actions"))
    assert derived.values_all_actions
    assert derived.risk.form == "budget"


@pytest.mark.refusal
@pytest.mark.parametrize(
    "other",
    [
        {"risk__cvar_weight": 0.1},
        {"risk__cvar_trace": 0.9},
        {"risk__cvar_winsor_pct": 0.1},
        {"risk__cvar_policy_mode": "episode"},
        {"risk__cvar_use_predicted_for_dual": True},
        {"risk__cvar_quantity": "step", "risk__cvar_policy_mode": "state"},
    ],
)
def test_the_form_critic_refuses_what_it_does_not_know(other):
    with pytest.raises(ConfigError) as caught:
        config(**LIMIT, risk__cvar_limit=-0.1, risk__form="critic", **other)
    assert "`form` must be `budget` beside `cvar_policy_mode`, `cvar_trace`, `cvar_weight`" in str(
        caught.value
    )
