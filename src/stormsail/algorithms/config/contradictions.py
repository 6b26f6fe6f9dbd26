"""Contradictions between settings: what may be set only together with something else.

Each one names both settings and the way out. A setting is refused where it asks for something that
its switch rules out; numbers that only wait for a switch, such as `vgs.alpha`, are not.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from stormsail.algorithms.config.derivable import divisors, is_open
from stormsail.core.config import Config, toml
from stormsail.core.config.problems import ContradictionError

if TYPE_CHECKING:
    from stormsail.algorithms.config import TrainConfig


class Needs(NamedTuple):
    """Settings that mean something only while another one is on."""

    settings: tuple[str, ...]
    """Refused at any other value than their default while the switch is off."""
    switch: str
    """Path of the other one."""
    on: Callable[["TrainConfig"], bool]
    """Whether it is."""
    remedy: str
    """How to switch it on."""
    off: tuple[object, ...] = ()
    """Further values that ask for nothing."""


NEEDS = (
    Needs(
        ("kl.penalty",),
        "kl.target_kl",
        lambda config: bool(config.kl.target_kl),
        "Set `kl.target_kl` to the divergence that the penalty should hold, for example 0.02",
    ),
    Needs(
        (
            "value_clip.distributional_vf_clip_mode",
            "value_clip.distributional_vf_clip_variance_factor",
            "value_clip.vf_clip_units",
            "value_clip.vf_clip_warmup_updates",
            "value_clip.vf_clip_threshold_ev",
        ),
        "value_clip.clip_range_vf",
        lambda config: config.value_clip.clip_range_vf is not None,
        "Set `value_clip.clip_range_vf` to the largest move of a prediction, for example 0.2",
        off=("disable",),
    ),
    Needs(
        (
            "ppo.normalize_advantage_per_env",
            "ppo.advantage_mode",
            "ppo.advantage_scale",
            "ppo.adv_clip",
        ),
        "ppo.normalize_advantage",
        lambda config: config.ppo.normalize_advantage,
        "Set `ppo.normalize_advantage` to true",
        off=("rollout",),
    ),
    Needs(
        ("optimizer.compiled",),
        "optimizer.optimizer_class",
        lambda config: config.optimizer.optimizer_class != "AdamW",
        "Set `optimizer.optimizer_class` to one of the UPGD family",
        off=(False,),
    ),
    Needs(
        ("optimizer.compiled",),
        "optimizer.noise_scale",
        lambda config: config.optimizer.noise_scale != "rms_update",
        "Set `optimizer.noise_scale` to `absolute` or `rms_grad`",
        off=(False,),
    ),
    Needs(
        ("optimizer.compiled",),
        "vgs.enabled",
        lambda config: not config.vgs.enabled or config.vgs.fits_compiled_step,
        "Set `vgs.enabled` to false, or `vgs.statistic` to `elementwise` and `vgs.scope` to "
        "`per_tensor`",
        off=(False,),
    ),
    Needs(
        ("ppo.vf_bad_explained_floor",),
        "ppo.vf_bad_explained_scale",
        lambda config: config.ppo.vf_bad_explained_scale < 1.0,
        "Set `ppo.vf_bad_explained_scale` below 1",
    ),
    Needs(
        ("entropy.ent_coef_plateau_tolerance", "entropy.ent_coef_plateau_min_updates"),
        "entropy.ent_coef_plateau_window",
        lambda config: config.entropy.ent_coef_plateau_window > 0,
        "Set `entropy.ent_coef_plateau_window` to the updates that must be level, for example 24",
    ),
    Needs(
        ("entropy.entropy_boost_cap", "entropy.bad_explained_patience"),
        "entropy.entropy_boost_factor",
        lambda config: config.entropy.entropy_boost_factor > 1.0,
        "Set `entropy.entropy_boost_factor` above 1",
    ),
    Needs(
        ("entropy.entropy_boost_factor",),
        "entropy.ent_coef",
        lambda config: config.entropy.ent_coef > 0.0,
        "Set `entropy.ent_coef` above 0, which the boost multiplies",
    ),
    Needs(
        ("observation.obs_stats_update",),
        "observation.normalise",
        lambda config: config.observation.normalise,
        "Set `observation.normalise` to true",
    ),
    Needs(
        ("bc.bc_final_coef",),
        "bc.awr_coef",
        lambda config: config.bc.awr_coef > 0.0,
        "Set `bc.awr_coef`, from which the coefficient moves there, above 0",
    ),
    Needs(
        ("network.num_layers", "network.learn_initial_state"),
        "network.memory",
        lambda config: config.network.memory != "none",
        "Set `network.memory` to `lstm` or `gru`",
    ),
    Needs(
        ("critic.monotone_quantiles", "critic.levels"),
        "critic.kind",
        lambda config: config.critic.kind == "quantile",
        "Set `critic.kind` to `quantile`",
        off=("uniform",),
    ),
    Needs(
        ("risk.cvar_margin", "risk.cvar_trust", "risk.cvar_floor"),
        "risk.form",
        lambda config: config.risk.form != "budget",
        "Set `risk.form` to critic",
    ),
    Needs(
        ("target.mixture_lambda",),
        "target.kind",
        lambda config: config.target.kind == "lambda_mixture",
        "Set `target.kind` to `lambda_mixture`",
    ),
    Needs(
        ("adversary.adversarial_ratio",),
        "adversary.mode",
        lambda config: config.adversary.mode != "kl_reg",
        "Set `adversary.mode` to `mixed_batch` or `rollout`",
    ),
    Needs(
        ("adversary.attack_policy", "adversary.attack_value"),
        "adversary.mode",
        lambda config: config.adversary.mode not in ("kl_reg", "rollout"),
        "Set `adversary.mode` to `mixed_batch`",
    ),
    Needs(
        ("adversary.attack_steps", "adversary.attack_lr"),
        "adversary.attack_method",
        lambda config: config.adversary.attack_method != "fgsm",
        "Set `adversary.attack_method` to `pgd` or `sgld`, which take several steps",
    ),
    Needs(
        ("adversary.epsilon_final",),
        "adversary.epsilon_schedule",
        lambda config: config.adversary.epsilon_schedule != "constant",
        "Set `adversary.epsilon_schedule` to `linear` or `cosine`",
    ),
)
"""What asks for something, and the switch that it needs."""

WARM_UPS = (
    ("ppo.clip_range_warmup", "ppo.clip_range", "ppo.clip_range_warmup_updates"),
    ("ppo.vf_coef_warmup", "ppo.vf_coef", "ppo.vf_coef_warmup_updates"),
)
"""Value of the first update, value after the warm-up, and its updates."""


def check(config: "TrainConfig") -> None:
    """Refuse settings that contradict each other, all of them at once.

    Raises:
        ContradictionError: if there is one.
    """
    rules = (
        *(_needs, _advantages, _warm_ups, _rates, _entropies, _returns, _minibatches, _windows),
        *(_forgeries, _compiled),
    )
    problems = [problem for rule in rules for problem in rule(config)]
    if len(problems) == 1:
        raise problems[0]
    if problems:
        listed = (
            f"({number}) {problem.wrong}; found {problem.found}. {problem.remedy}"
            for number, problem in enumerate(problems, start=1)
        )
        raise ContradictionError(
            "settings must not contradict each other",
            found=f"{len(problems)} contradictions",
            remedy=" ".join(listed),
        )


def _needs(config: "TrainConfig") -> Iterator[ContradictionError]:
    for rule in NEEDS:
        if rule.on(config):
            continue
        for path in rule.settings:
            value, default = _value(config, path), _default(config, path)
            if value == default or value in rule.off:
                continue
            yield ContradictionError(
                f"`{path}` must be {_shown(default)} while "
                f"`{rule.switch}` is {_shown(_value(config, rule.switch))}",
                found=toml.shown(value),
                remedy=f"{rule.remedy}, or leave `{path}` out.",
            )


def _advantages(config: "TrainConfig") -> Iterator[ContradictionError]:
    ppo = config.ppo
    if config.risk.acts and ppo.adv_clip is not None:
        yield ContradictionError(
            "`ppo.adv_clip` must be left out while settings of `risk` act: a bound on advantages "
            "cuts off the rare losses that a limit is about, and nothing else",
            found=toml.shown(ppo.adv_clip),
            remedy="Leave `ppo.adv_clip` out; set `ppo.advantage_scale` to slow, and lower "
            "`ppo.learning_rate` if single updates are too large.",
        )
    if config.risk.acts and config.risk.form == "budget" and ppo.policy_gradient == "all_actions":
        yield ContradictionError(
            "`ppo.policy_gradient` must be `sampled` while settings of `risk` act in the form "
            "`budget`, which has no advantage of an action that was not taken",
            found=toml.shown(ppo.policy_gradient),
            remedy="Leave `ppo.policy_gradient` out, or set `risk.form` to critic.",
        )
    if not config.slow_advantages or not ppo.normalize_advantage:
        return
    because = (
        "`ppo.advantage_scale` is slow"
        if not is_open(ppo.advantage_scale)
        else "`ppo.advantage_scale` is slow, which it is where settings of `risk` act"
    )
    reasons = {
        "ppo.normalize_advantage_per_env": "one environment by itself rarely meets a rare loss, so "
        "each would have a scale of its own for it",
        "ppo.advantage_mode": "slow moments have a spread where a rollout has none",
    }
    for path, reason in reasons.items():
        value, default = _value(config, path), _default(config, path)
        if value != default:
            yield ContradictionError(
                f"`{path}` must be {_shown(default)} while {because}: {reason}",
                found=toml.shown(value),
                remedy=f"Leave `{path}` out, or set `ppo.advantage_scale` to rollout.",
            )


def _forgeries(config: "TrainConfig") -> Iterator[ContradictionError]:
    if not config.adversary.attacks_rollouts:
        return
    weight = config.adversary.robust_kl_coef
    if weight != _default(config, "adversary.robust_kl_coef"):
        yield ContradictionError(
            '`adversary.robust_kl_coef` must be left out while `adversary.mode` is "rollout": '
            "nothing is added to the loss",
            found=toml.shown(weight),
            remedy="Leave `adversary.robust_kl_coef` out, or set `adversary.mode` to `kl_reg`.",
        )
    if config.risk.watches:
        yield ContradictionError(
            "`adversary.mode` must not be `rollout` beside settings of `risk`: the tail that they "
            "watch is that of the episodes of training, and in some of these the agent would be "
            "misled",
            found=toml.shown(config.adversary.mode),
            remedy='Set `adversary.mode` to "kl_reg", or leave the settings of `risk` out.',
        )


def _compiled(config: "TrainConfig") -> Iterator[ContradictionError]:
    if config.compile_update and config.device != "cpu":
        yield ContradictionError(
            f"`compile_update` must be false while `device` is {_shown(config.device)}: it compiles"
            " for a CPU, and a GPU records its updates (`cuda_graphs`)",
            found="true",
            remedy='Leave `compile_update` out, or set `device` to "cpu".',
        )


def _warm_ups(config: "TrainConfig") -> Iterator[ContradictionError]:
    for first, last, updates in WARM_UPS:
        value = _value(config, first)
        if _value(config, updates) or value in (_default(config, first), _value(config, last)):
            continue
        yield ContradictionError(
            f"`{first}` must be left out while `{updates}` is 0: no update would use it",
            found=toml.shown(value),
            remedy=f"Set `{updates}` to the length of the warm-up, or leave `{first}` out.",
        )


def _rates(config: "TrainConfig") -> Iterator[ContradictionError]:
    ppo = config.ppo
    low, high = ppo.optimizer_lr_min, ppo.optimizer_lr_max
    if high is not None and high < low:
        yield ContradictionError(
            "`ppo.optimizer_lr_max` must be at least `ppo.optimizer_lr_min`",
            found=f"{high} and {low}",
            remedy="Raise `ppo.optimizer_lr_max`, or lower `ppo.optimizer_lr_min`.",
        )
    elif high is not None and not is_open(ppo.learning_rate) and ppo.learning_rate > high:
        yield ContradictionError(
            "`ppo.learning_rate` must be at most `ppo.optimizer_lr_max`",
            found=f"{ppo.learning_rate} and {high}",
            remedy="Lower `ppo.learning_rate`, or raise `ppo.optimizer_lr_max`.",
        )
    if not is_open(ppo.learning_rate) and ppo.learning_rate < low:
        yield ContradictionError(
            "`ppo.learning_rate` must be at least `ppo.optimizer_lr_min`",
            found=f"{ppo.learning_rate} and {low}",
            remedy="Raise `ppo.learning_rate`, or lower `ppo.optimizer_lr_min`.",
        )


def _entropies(config: "TrainConfig") -> Iterator[ContradictionError]:
    start, end = config.entropy.ent_coef, config.entropy.ent_coef_final
    floor = config.entropy.ent_coef_min
    if floor is None:
        return
    for name, value in (("ent_coef", start), ("ent_coef_final", end)):
        if value is not None and value < floor:
            yield ContradictionError(
                f"`entropy.{name}` must be at least `entropy.ent_coef_min`, below which the "
                "coefficient never is",
                found=f"{value} and {floor}",
                remedy=f"Lower `entropy.ent_coef_min`, leave it out, or raise `entropy.{name}`.",
            )


def _returns(config: "TrainConfig") -> Iterator[ContradictionError]:
    frozen, warmup = config.returns.freeze_after, config.returns.warmup_updates
    if frozen is not None and frozen <= warmup:
        yield ContradictionError(
            "`returns.freeze_after` must be above `returns.warmup_updates`: statistics would be "
            "frozen while they still follow each update",
            found=f"{frozen} and {warmup}",
            remedy="Raise `returns.freeze_after`, or lower `returns.warmup_updates`.",
        )


def _minibatches(config: "TrainConfig") -> Iterator[ContradictionError]:
    ppo = config.ppo
    if is_open(ppo.n_steps, ppo.n_envs, ppo.batch_size):
        return
    length = ppo.sequence_length or ppo.n_steps
    if ppo.n_steps % length:  # refused elsewhere
        return
    count, size = ppo.n_envs * ppo.n_steps // length, ppo.batch_size
    if count <= size or count % size != 1:
        return
    fitting = divisors(count)
    below = max(part for part in fitting if part < size)
    above = min(part for part in fitting if part > size)
    yield ContradictionError(
        f"`ppo.batch_size` must not leave a last minibatch of one sequence: it would take a step "
        f"as large as those of {size}",
        found=f"{size} of the {count} sequences that `ppo.n_envs`, `ppo.n_steps` and "
        "`ppo.sequence_length` give",
        remedy=f"Set `ppo.batch_size` to {below} or {above}, or change `ppo.n_envs`.",
    )


def _windows(config: "TrainConfig") -> Iterator[ContradictionError]:
    steps, rows = config.target.steps, config.ppo.n_steps
    chosen = steps != _default(config, "target.steps") and config.target.kind == "nstep"
    if chosen and not is_open(rows) and steps > rows:
        yield ContradictionError(
            "`target.steps` must be at most `ppo.n_steps`, the length of a rollout",
            found=f"{steps} and {rows}",
            remedy="Lower `target.steps`, raise `ppo.n_steps`, or set `target.kind` to `mc` for "
            "returns to the end of the rollout.",
        )


def _value(config: "TrainConfig", path: str) -> object:
    section, _, name = path.partition(".")
    value: object = getattr(getattr(config, section), name)
    return value


def _default(config: "TrainConfig", path: str) -> object:
    section, _, name = path.partition(".")
    part: Config = getattr(config, section)
    default: object = type(part).model_fields[name].default
    return default


def _shown(value: object) -> str:
    return "unset" if value is None else toml.shown(value)
