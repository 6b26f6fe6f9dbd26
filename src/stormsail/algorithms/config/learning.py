"""Settings of the learner: rollout, losses, critics, return scale, optimizer."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stormsail.algorithms.config.derivable import (
    OPEN,
    DerivedCount,
    DerivedFlag,
    DerivedPositive,
    DerivedScale,
    DerivedWhole,
)
from stormsail.core.config import Config

Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Unit = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


class PpoConfig(Config):
    """Rollout, epochs and the policy's loss."""

    total_steps: Count = 1_000_000
    """Steps of all environments together after which training ends."""

    n_steps: DerivedCount = OPEN
    """T, rows of a rollout. Derived: 128; on a small budget 64, 32 or 16, for 40 updates or more;
    a multiple of `sequence_length`."""

    n_envs: DerivedCount = OPEN
    """B, environments side by side, columns of a rollout. Derived: 64 for the market, 1024 on a
    GPU, and fewer, down to 16, on a small budget; 16 for other tasks."""

    n_epochs: DerivedCount = OPEN
    """Passes over a rollout. Derived: 4."""

    batch_size: DerivedCount = OPEN
    """Sequences of a minibatch. Derived: a quarter of them all on the market, as many as hold 128
    samples elsewhere; or the next larger number that leaves no rest."""

    microbatch_size: Count | None = None
    """Columns whose gradients are computed at once; None takes the whole minibatch."""

    sequence_length: DerivedCount = OPEN
    """Rows of a training sequence, which must divide `n_steps`. Derived: all of them on the market,
    and where `batch_size` is given, which then counts environments; 32 elsewhere, or the largest
    number below that divides."""

    learning_rate: DerivedPositive = OPEN
    """At the start. Derived: 3e-4 for the market, 1e-3 for other tasks."""

    learning_rate_final: NonNegative = 0.0
    """At the end of training, reached linearly; equal to `learning_rate` keeps it constant."""

    optimizer_lr_min: NonNegative = 5e-6
    """The learning rate is never below this."""

    optimizer_lr_max: Positive | None = None
    """The learning rate is never above this."""

    policy_gradient: Literal["sampled", "all_actions"] = "sampled"
    """Whether the policy learns from the actions that were taken, or from what every action would
    have made of the same draw, where a task can say so, as markets can. A limit with
    `risk.form = "critic"` on such a task always takes the second."""

    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """Discount of one step."""

    gae_lambda: Unit = 0.95
    """Trace decay lambda of the generalised advantage estimate."""

    clip_range: Positive = 0.2
    """The ratio counts up to 1 plus or minus this."""

    clip_range_warmup: Positive = 0.2
    """The same at the first update."""

    clip_range_warmup_updates: Whole = 0
    """Updates from the one to the other."""

    vf_coef: NonNegative = 0.5
    """Weight of the critics' loss."""

    vf_coef_warmup: NonNegative = 0.5
    """The same at the first update."""

    vf_coef_warmup_updates: Whole = 0
    """Updates from the one to the other."""

    vf_bad_explained_scale: Unit = 1.0
    """Factor on `vf_coef` while the explained variance is negative."""

    vf_bad_explained_floor: NonNegative = 0.0
    """That factor does not take it below this."""

    critic_grad_warmup_updates: Whole = 0
    """Updates at the start in which only the critics learn."""

    max_grad_norm: float = 0.5
    """Bound on the norm of all gradients together; 0 or less switches it off."""

    normalize_advantage: bool = True
    """Divide advantages by their standard deviation and centre them, once a rollout."""

    normalize_advantage_per_env: bool = False
    """Normalise each environment by itself."""

    advantage_scale: DerivedScale = OPEN
    """Mean and standard deviation that advantages are normalised with: those of the `rollout`
    itself, or `slow` ones of the rollouts before it, under which a rare loss keeps its share of the
    expected gradient. Derived: `slow` where settings of `risk` act, `rollout` elsewhere."""

    advantage_scale_beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.98
    """Weight of the past in the `slow` moments; about 1 / (1 - beta) rollouts are remembered."""

    advantage_mode: Literal["floor", "eps", "center_only", "zero", "skip", "previous_stats"] = (
        "floor"
    )
    """Rule where the standard deviation of advantages is too small to divide by."""

    adv_std_floor: Positive = 1e-8
    """The spread counts as at least this."""

    adv_clip: Positive | None = None
    """Bound on normalised advantages."""

    nonfinite_policy: Literal["drop", "zero", "skip", "raise"] = "drop"
    """Rule for samples whose log ratio is not finite."""


class EntropyConfig(Config):
    """Entropy bonus and its schedule."""

    ent_coef: NonNegative = 0.01
    """At the start; 0, with nothing else set here, is no bonus at all."""

    ent_coef_final: NonNegative | None = None
    """At the end of the decay; None takes the smaller of 0.001 and `ent_coef`."""

    ent_coef_min: NonNegative | None = None
    """Never below this; None takes the smallest of 0.0005, `ent_coef` and `ent_coef_final`."""

    ent_coef_decay_steps: Whole | None = None
    """Updates that the linear decay takes. Derived: all from its start to the end of the run."""

    ent_coef_plateau_window: Whole = 0
    """Updates over which the entropy must be level before the decay starts; 0 starts at once."""

    ent_coef_plateau_tolerance: NonNegative = 0.002
    """Slope of the entropy per update that counts as level."""

    ent_coef_plateau_min_updates: Whole = 40
    """No plateau is detected before this update."""

    entropy_boost_factor: Annotated[float, Field(ge=1.0)] = 1.0
    """Factor for each update in which the critics stay worse than a constant; 1 is off."""

    entropy_boost_cap: Annotated[float, Field(ge=1.0)] = 5.0
    """Largest coefficient, as a multiple of `ent_coef`."""

    bad_explained_patience: Whole = 2
    """Updates of negative explained variance before the boost begins."""

    entropy_mode: Literal["presquash", "corrected_mc"] = "presquash"
    """Entropy of a squashed Gaussian: in closed form before squashing, or after it by sampling."""


class KlConfig(Config):
    """KL control: early stopping of the epochs, and a KL penalty."""

    target_kl: NonNegative | None = 0.08
    """KL divergence that an update should stay below; None or 0 switches everything here off."""

    kl_early_stop: bool = True
    """End the epochs early where the divergence is too large."""

    kl_absolute_stop_factor: Positive = 2.5
    """Stop at once beyond this multiple of the target."""

    kl_consec_minibatches: Count = 2
    """Stop after this many minibatches in a row beyond the target."""

    kl_exceed_stop_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Stop when this share of the minibatches so far was beyond the target."""

    kl_epoch_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Factor on the target after each epoch."""

    use_ema: bool = True
    """Compare the moving average of the divergence instead of each minibatch by itself."""

    kl_ema_updates: Positive = 10.0
    """Length of that average in minibatches."""

    kl_ema_alpha: Unit | None = None
    """Weight of the newest minibatch; None takes 2 / (`kl_ema_updates` + 1)."""

    penalty: bool = False
    """Add the divergence to the loss, with a coefficient that a controller moves."""

    beta_init: Positive = 0.01
    """That coefficient at the start."""

    beta_min: Positive = 1e-4
    """Its least value."""

    beta_max: Positive = 1.0
    """Its largest value."""

    kp: NonNegative = 0.5
    """Proportional gain of the controller."""

    ki: NonNegative = 0.05
    """Integral gain."""

    kd: NonNegative = 0.1
    """Derivative gain."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.beta_min <= self.beta_init <= self.beta_max:
            raise ValueError(
                f"`beta_init` must lie between `beta_min` and `beta_max`, not {self.beta_min}, "
                f"{self.beta_init}, {self.beta_max} in that order"
            )
        return self

    @property
    def ema_alpha(self) -> float:
        """Weight of the newest minibatch in the moving average."""
        own = self.kl_ema_alpha
        return 2.0 / (self.kl_ema_updates + 1.0) if own is None else own


class TargetConfig(Config):
    """Critic targets."""

    kind: Literal["nstep", "lambda_mixture", "td", "mc", "lambda_return"] = "nstep"
    """Return distribution after n steps, mixture over all n, after one step, or at the end of the
    rollout; or the scalar return."""

    steps: Count = 64
    """n; at most the length of a rollout."""

    mixture_lambda: Unit = 0.98
    """Weight of longer returns in the mixture."""


class ValueClipConfig(Config):
    """Value clipping: new predictions of a critic are held near its old ones."""

    clip_range_vf: Positive | None = None
    """Largest move; None is off."""

    vf_clip_units: Literal["norm", "raw"] = "norm"
    """In normalised or in reward units."""

    distributional_vf_clip_mode: Literal[
        "disable", "mean_only", "mean_and_variance", "per_quantile"
    ] = "mean_only"
    """Which part of a distribution is clipped; `disable` clips nothing, whatever the range."""

    distributional_vf_clip_variance_factor: Positive = 2.0
    """How many times wider than before a distribution may become."""

    vf_clip_warmup_updates: Whole = 0
    """Updates at the start without clipping."""

    vf_clip_threshold_ev: float | None = None
    """No clipping while the explained variance is below this."""

    value_clip_limit: Positive | None = None
    """Values read from the critics are limited to plus or minus this, in reward units."""

    @property
    def clips(self) -> bool:
        """Whether predictions are clipped at all, gates aside."""
        return self.clip_range_vf is not None and self.distributional_vf_clip_mode != "disable"


class ReturnConfig(Config):
    """Return scale: normalisation of the critics' targets."""

    normalize_returns: Literal["popart", "scale", "frozen_lag", "off"] = "popart"
    """PopArt keeps predictions while the statistics change; the others are for comparison."""

    return_stat: Literal["std", "mad"] = "std"
    """Spread of the returns: standard deviation, or the median absolute deviation."""

    ret_clip: Positive = 10.0
    """Normalised scalar targets are limited to plus or minus this."""

    std_floor: Positive = 1e-8
    """The spread counts as at least this."""

    std_floor_mode: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive` also takes a tenth of the median spread so far."""

    ema_beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Weight of the old statistics in each step."""

    window_updates: Count = 16
    """Updates whose returns are pooled."""

    warmup_updates: Whole = 6
    """Updates at the start that follow the window at once, without average and limits."""

    freeze_after: Count | None = None
    """Update after which statistics stay as they are; None never freezes them."""

    max_rel_step: Positive = 0.5
    """Largest step of the mean, in standard deviations, and of the deviation, relative."""

    value_target_scale_cap: Positive = 1000.0
    """Bound on the gain from returns to targets, so on what a return is multiplied by. Critics
    learn alike in every unit of the reward until it binds, which an alarm tells."""


class ObservationConfig(Config):
    """Normalisation of observations."""

    normalise: bool = True
    """Standardise observations by their running mean and deviation."""

    obs_stats_update: Literal["between_rollouts", "online"] = "between_rollouts"
    """When new statistics are used; `online` is for comparison."""

    warmup_steps: Whole = 64
    """Steps of the first policy in every environment that set the statistics before the first
    update, so that it sees normalised observations; they count as no steps of the run. 0 leaves the
    observations of the first rollout as they are."""


FORMER_NAMES = {"cql_alpha": "awr_coef", "cql_beta": "awr_temperature"}
"""Names of earlier versions that `BcConfig` still accepts."""


class BcConfig(Config):
    """Advantage-weighted regression (AWR) on the rollout, beside the policy gradient."""

    awr_coef: NonNegative = 0.0
    """Coefficient of the AWR term at the start; 0 leaves it out. Its former name `cql_alpha` is
    accepted too."""

    awr_temperature: Positive = 5.0
    """Temperature beta: advantages are divided by it before the exponential. Its former name
    `cql_beta` is accepted too."""

    max_weight: Positive = 100.0
    """Bound on that exponential."""

    awr_normalize: bool = False
    """Divide the weights by their mean."""

    bc_warmup_steps: DerivedWhole = OPEN
    """Environment steps before the coefficient begins to fall. Derived: a fifth of
    `ppo.total_steps`."""

    bc_decay_steps: DerivedWhole = OPEN
    """Environment steps that its fall takes. Derived: the rest of `ppo.total_steps`."""

    bc_final_coef: NonNegative = 0.0
    """Where it ends."""

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, data: object) -> object:
        """Accept the names of earlier versions; refuse a setting that is given under both."""
        if not isinstance(data, Mapping):
            return data
        renamed = dict(data)
        for former, name in FORMER_NAMES.items():
            if former in renamed and name in renamed:
                raise ValueError(f"`{name}` must be given once, not also as `{former}`")
            if former in renamed:
                renamed[name] = renamed.pop(former)
        return renamed


class OptimizerConfig(Config):
    """Optimizer of all weights."""

    optimizer_class: Literal["AdaptiveUPGD", "UPGD", "UPGDW", "AdamW"] = "AdaptiveUPGD"
    """Which optimizer."""

    weight_decay: NonNegative | None = None
    """Decoupled decay of the weights, per unit of the learning rate; None takes 0.01 for UPGDW and
    AdamW, and 0 for the others."""

    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Memory of the first moment."""

    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    """Memory of the second moment."""

    eps: Positive = 1e-5
    """Added to the root of the second moment."""

    beta_utility: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    """Memory of the utilities."""

    sigma: NonNegative = 0.001
    """Standard deviation of the exploration of weights."""

    noise_scale: Literal["absolute", "rms_update", "rms_grad"] = "absolute"
    """What that is relative to."""

    utility_norm: Literal["centred", "minmax", "global_max", "abs_max"] = "centred"
    """How utilities become gates."""

    lr_compensation: Positive = 2.0
    """Factor that makes an average gate of one half a plain step."""

    compiled: DerivedFlag = OPEN
    """Guard, scaler, clip and step in a few compiled kernels: the same numbers up to rounding, and
    on a CPU other draws of the noise. For the UPGD family; the scaler must be off or measure
    `elementwise`, `per_tensor`. Derived: true on a GPU where all of that
    holds."""


class VgsConfig(Config):
    """Variance gradient scaler: smaller steps where gradients are mostly noise."""

    enabled: bool = False
    """Whether the scaler is on."""

    beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Memory of the statistics."""

    alpha: NonNegative = 0.1
    """How strongly noise shrinks a step."""

    eps_rel: Positive = 1e-3
    """Keeps the ratio finite, relative to the gradient's size."""

    warmup_steps: Whole = 100
    """Optimizer steps before it acts."""

    min_scaling_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """A step is never shrunk below this share."""

    variance_cap: Positive = 50.0
    """Bound on the ratio that shrinks a step: of noise to signal, or above the median."""

    statistic: Literal["elementwise", "total", "mean", "norm", "elementwise_full", "microbatch"] = (
        "elementwise"
    )
    """Which variance."""

    reference: Literal["absolute", "median"] = "median"
    """Level that a tensor's noise is compared with: its signal, or the slow median of its own
    noise."""

    scope: Literal["per_tensor", "global"] = "per_tensor"
    """One factor a tensor, or one for all."""

    @property
    def fits_compiled_step(self) -> bool:
        """Whether the compiled step of the optimizer measures this."""
        return (self.statistic, self.scope) == ("elementwise", "per_tensor")

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if (self.statistic, self.reference) == ("elementwise_full", "median"):
            raise ValueError(
                "`statistic` must be another than `elementwise_full` where `reference` is "
                "`median`, which does not read what that one has beyond `elementwise`; use that, "
                "or the reference `absolute`"
            )
        return self
