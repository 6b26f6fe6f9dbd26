"""Settings of the CVaR control: which quantity, which limit, and how it acts on the policy.

Returns, limits and all metrics are in reward units of the quantity that `cvar_quantity` names.
CVaR is the mean of the worst share `cvar_alpha` of it: higher is better.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stormsail.algorithms.config.derivable import OPEN, DerivedForm
from stormsail.algorithms.config.learning import Count, NonNegative, Positive, Unit, Whole
from stormsail.core.config import Config

LEAST_ALPHA = 1e-4
"""Shares of worst outcomes below this cannot be estimated from any rollout."""

MIN_TAIL_SAMPLES = 10
"""Outcomes that the tail itself must hold before its mean is used."""

WINSOR_SHARE = 20.0
"""The cut must stay below alpha over this: at alpha it would erase the tail that is measured."""


class RiskConfig(Config):
    """Control of the lower tail of returns (CVaR)."""

    form: DerivedForm = OPEN
    """How a limit reaches the policy: `critic` learns what each action adds to the shortfall of the
    episode, from a memory of draws; `budget` reads it from the return distribution of the critics,
    for comparison. Open: `critic` for a limit on episodes whose other settings leave it to that
    form."""

    cvar_quantity: Literal["episode_return", "nstep", "step"] = "episode_return"
    """Quantity whose tail is controlled: returns of whole episodes, sums of `target.steps` rewards,
    or single rewards."""

    cvar_reward: Literal["log_growth", "any"] = "log_growth"
    """Rewards whose tail may be watched and held: log growth of equity, which is money, or `any`.
    With another reward the limit is in its units, and evaluations, which are in log growth, do not
    hold the best agent to it."""

    cvar_alpha: Annotated[float, Field(ge=LEAST_ALPHA, le=1.0)] = 0.05
    """Share of worst outcomes that the tail is made of."""

    cvar_policy_mode: Literal["budget", "state", "episode", "critic_legacy"] = "budget"
    """Form of the risk advantage: what the episode may still lose, the tail of each state, tail
    episodes as a whole; or a term of an earlier system that trains only critics, for comparison."""

    cvar_trace: Unit | Literal["target"] = 0.0
    """Trace decay lambda of the one-step changes that make up the `budget` form: 0 relies on the
    critics, 1 on what happened. `target` takes the atoms of the critics' target instead, which
    assigns a loss to all `target.steps` decisions before it."""

    cvar_weight: NonNegative = 0.0
    """Weight of the risk advantage beside the advantage; 0 leaves it out."""

    cvar_use_penalty: bool = True
    """Whether that weight acts; false keeps the constraint alone."""

    cvar_activation_threshold: float = 0.15
    """The weight acts from this explained variance on."""

    cvar_activation_hysteresis: NonNegative = 0.05
    """And ends when it falls this far below."""

    cvar_ramp_updates: Whole = 12
    """Updates in which the weight grows to its full size once it acts."""

    cvar_penalty_cap: NonNegative = 0.7
    """Largest weight that acts."""

    cvar_cap: Positive = 0.5
    """Bound on the mean of weight times risk advantage, in standard deviations of the advantage;
    beyond it the weight shrinks."""

    cvar_use_constraint: bool = False
    """Hold CVaR at or above `cvar_limit` by a Lagrange multiplier."""

    cvar_limit: float | None = None
    """Least CVaR, in reward units of the quantity; without the constraint it is only watched."""

    cvar_margin: NonNegative = 1.0
    """Standard errors of the estimated CVaR by which the form `critic` aims inside the limit; an
    error counts up to 15 % of the limit's size. Where episodes share what they draw, as bars of a
    market, that is part of the error, and an error counts twice: other bars have one of their own.
    More keeps the limit surer and costs mean."""

    cvar_trust: Literal["full", "verified"] = "verified"
    """How far the form `critic` follows what its critic says of single states where all actions are
    valued: whole, or as far as new rollouts bear it out once there are ten. Where single bars are
    noise, as on hourly ones, `full` follows noise; where they are not, it finds warnings sooner."""

    cvar_floor: bool = False
    """Whether the policy is pulled to an action that keeps the limit if held throughout and earns
    more than the policy does, where all actions are valued."""

    dual_controller: Literal["pid", "integral"] = "pid"
    """What moves the multiplier, once an update."""

    cvar_kp: NonNegative = 0.5
    """Proportional gain on the gap, which is in units of the larger of |limit| and spread."""

    cvar_ki: NonNegative = 0.02
    """Integral gain."""

    cvar_kd: NonNegative = 0.0
    """Gain on a gap that grows."""

    cvar_lambda_lr: Positive = 0.01
    """Step of the multiplier of the `integral` controller for a gap of one unit."""

    cvar_lambda_max: Positive = 2.0
    """Largest multiplier; an alarm tells where it is too small for the limit."""

    cvar_rescale: bool = True
    """Divide the mixed advantage by 1 + multiplier, so that a large one does not mean large steps;
    no matter where advantages are normalised."""

    cvar_ema_beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """Weight of the past in the estimate that the multiplier follows."""

    cvar_use_predicted_for_dual: bool = False
    """Let the multiplier follow the critics' prediction instead of what happened; they are
    optimistic, so this is for comparison."""

    cvar_window: Count = 512
    """Finished episodes in the estimate."""

    cvar_min_samples: Count = 200
    """Outcomes before anything acts."""

    cvar_min_tail_samples: Count = MIN_TAIL_SAMPLES
    """Of those, outcomes that belong to the tail."""

    cvar_winsor_pct: NonNegative = 0.0
    """Percent of outcomes on each side that are pulled in before the estimate; at most a twentieth
    of the tail."""

    cvar_estimator: Literal["dirac", "linear"] = "dirac"
    """How predicted quantiles are read: as atoms, or as a broken line."""

    cvar_infeasible_updates: Count = 20
    """n: a limit counts as infeasible if the mean gap of n updates at the largest multiplier is not
    smaller by a tenth than that of the n before; below that multiplier, than that of 5 n before."""

    cvar_log_gradient: bool = False
    """Measure the gradient of the risk term by itself, at the cost of one more minibatch an update;
    below an alpha of 0.01 it is always measured."""

    @property
    def acts(self) -> bool:
        """Whether anything here changes what is learned."""
        return self.cvar_use_constraint or (self.cvar_use_penalty and self.cvar_weight > 0.0)

    @property
    def fits_critic(self) -> bool:
        """Whether nothing is set that only the form `budget` knows."""
        plain = type(self)()
        own = ("cvar_policy_mode", "cvar_trace", "cvar_use_predicted_for_dual", "cvar_winsor_pct")
        weighs = self.cvar_use_penalty and self.cvar_weight > 0.0
        return (
            self.episode_limit is not None
            and not weighs
            and all(getattr(self, name) == getattr(plain, name) for name in own)
        )

    @property
    def watches(self) -> bool:
        """Whether the tail is estimated and reported."""
        return self.acts or self.cvar_limit is not None

    @property
    def episode_limit(self) -> float | None:
        """Limit on the CVaR of whole episodes; None without a constraint on it."""
        held = self.cvar_use_constraint and self.cvar_quantity == "episode_return"
        return self.cvar_limit if held else None

    @property
    def least_samples(self) -> float:
        """Outcomes before anything acts, the tail's own share considered."""
        return max(float(self.cvar_min_samples), self.cvar_min_tail_samples / self.cvar_alpha)

    @property
    def logs_gradient(self) -> bool:
        """Whether the gradient of the risk term is measured by itself."""
        return self.acts and (self.cvar_log_gradient or self.cvar_alpha < 0.01)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        mode, quantity = self.cvar_policy_mode, self.cvar_quantity
        if self.cvar_use_constraint and self.cvar_limit is None:
            raise ValueError(
                "`cvar_limit` must be set where `cvar_use_constraint` is true: a constraint "
                "without a limit holds nothing"
            )
        gains = (self.cvar_kp, self.cvar_ki, self.cvar_kd)
        if self.cvar_use_constraint and self.dual_controller == "pid" and not any(gains):
            raise ValueError(
                "one of `cvar_kp`, `cvar_ki` and `cvar_kd` must be above 0 where "
                "`cvar_use_constraint` is true: without a gain the multiplier stays at 0"
            )
        most = 100.0 * self.cvar_alpha / WINSOR_SHARE
        if self.cvar_winsor_pct > most:
            raise ValueError(
                f"`cvar_winsor_pct` must be at most {most:.4g} percent, a twentieth of "
                f"`cvar_alpha` {self.cvar_alpha}, not {self.cvar_winsor_pct}: a cut near the "
                "tail's own share erases the tail"
            )
        if mode in ("budget", "episode") and quantity != "episode_return":
            raise ValueError(
                f"`cvar_policy_mode` must be `state` for the quantity `{quantity}`, not `{mode}`, "
                "which is about the return of a whole episode"
            )
        if self.form == "critic" and self.acts and not self.fits_critic:
            raise ValueError(
                "`form` must be `budget` beside `cvar_policy_mode`, `cvar_trace`, `cvar_weight`, "
                "`cvar_winsor_pct`, `cvar_use_predicted_for_dual` or another `cvar_quantity` than "
                "`episode_return`, not `critic`, which knows none of them"
            )
        if self.cvar_use_predicted_for_dual and quantity != "episode_return":
            raise ValueError(
                f"`cvar_use_predicted_for_dual` must be false for the quantity `{quantity}`: the "
                "critics predict returns of episodes, and a multiplier must follow the quantity "
                "that its limit is about"
            )
        return self

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if not self.acts or self.cvar_quantity != "episode_return":
            return self
        if self.cvar_window < self.least_samples:
            raise ValueError(
                f"`cvar_window` must hold at least {self.least_samples:.0f} episodes, so that "
                f"`cvar_min_samples` {self.cvar_min_samples} of them and "
                f"`cvar_min_tail_samples` {self.cvar_min_tail_samples} in a tail of "
                f"{self.cvar_alpha} can ever be reached, not {self.cvar_window}"
            )
        return self
