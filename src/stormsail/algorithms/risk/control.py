"""The CVaR control of a run: outcomes in, one step of the multiplier, a mixed advantage out.

It acts between estimates and normalisation. What it follows is what really happened, in the unit
of the limit; what the critics foretell is reported beside it and, unless asked for, not followed.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.risk.activation import GateState, RiskGate
from stormsail.algorithms.risk.advantage import Trace, predicted_cvar, risk_advantage
from stormsail.algorithms.risk.multiplier import DualState, RiskDual
from stormsail.algorithms.risk.window import EpisodeWindow, partial_sums
from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.legacy_cvar import legacy_cvar
from stormsail.algorithms.update.readings import mean, spread
from stormsail.algorithms.update.rollout import Rollout
from stormsail.algorithms.update.saved_state import read_state
from stormsail.core.config import Config
from stormsail.core.files.documents import JsonValue
from stormsail.functional import risk
from stormsail.modules.agent import Agent

SOURCES = ("none", "empirical", "predicted")
"""What the multiplier followed in an update."""


class RiskState(Config):
    """What a resumed control needs."""

    version: Literal[2] = 2
    """Of this table."""
    window: tuple[float, ...]
    """Returns of the last episodes, oldest first."""
    average: float | None
    """Moving average of the estimated CVaR."""
    dual: DualState
    """The multiplier."""
    gate: GateState
    """Whether the weight acts."""


class Tail(NamedTuple):
    """What the outcomes say; NaN where there are too few."""

    samples: int
    is_ready: bool
    """Whether there are enough outcomes to act on."""
    raw: float
    """CVaR of the outcomes as they are."""
    empirical: float
    """The same after winsorising, which is off unless asked for."""
    error: float
    """Standard error of the CVaR; of parts of episodes with those of one environment as a group."""
    level: float
    """Value at risk nu."""
    spread: float
    """Standard deviation of the outcomes."""


NOTHING = Tail(
    samples=0,
    is_ready=False,
    raw=math.nan,
    empirical=math.nan,
    error=math.nan,
    level=math.nan,
    spread=0.0,
)


@dataclass(frozen=True, eq=False)
class RiskReport:
    """What the control saw and did in one update. Numbers in reward units of the quantity."""

    advantage: Tensor
    """Mixed, before normalisation, [T, B]."""
    risk: Tensor
    """Risk advantage, [T, B]; zeros while there are too few outcomes."""
    tail: Tail
    average: float
    """Moving average of the estimate, which the multiplier follows."""
    predicted: float
    """CVaR that the critics foretell where episodes begin."""
    realised: float
    """CVaR of the returns of the episodes of the window."""
    unit: float
    """What gaps are divided by before the multiplier sees them."""
    gap: float
    """Limit minus what is followed."""
    multiplier: float
    weight: float
    """Fixed weight that acts, after gate, ramp and bounds."""
    share: float
    """Of the ramp."""
    legacy: float
    """Weight of the old critic term; 0 in every other mode."""
    term: float
    """Mean of the risk advantage; of the normalised predicted CVaR in `critic_legacy`."""
    source: str
    """One of `SOURCES`."""
    is_infeasible: bool
    factor: float
    """What the risk advantage has in the mix: weight plus multiplier, rescaled; 0 before it
    acts."""
    gradient_norm: Tensor | None = None
    """Of the risk term alone, where it is measured."""


class RiskControl:
    """Everything about the tail that carries over from update to update.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.window = EpisodeWindow(config.risk.cvar_window)
        self.dual = RiskDual(config.risk)
        self.gate = RiskGate(config.risk)
        self.average: float | None = None

    def act(
        self,
        rollout: Rollout,
        estimates: Estimates,
        explained_variance: float,
        agent: Agent,
        *,
        trains_policy: bool = True,
    ) -> RiskReport:
        """Take a rollout in, move the multiplier once, and mix the advantages.

        Args:
            rollout: what happened.
            estimates: made of it, in reward units.
            explained_variance: of its returns by the critics.
            agent: whose critics gave the laws, before this update changes them.
            trains_policy: whether the policy learns in this update. While it does not, neither the
                multiplier nor the ramp moves: no policy could have answered to them.
        """
        config = self.config.risk
        self.window.add(rollout)
        tail = self.measure(rollout)
        self._follow(tail)
        predicted = predicted_cvar(
            agent, rollout, alpha=config.cvar_alpha, estimator=config.cvar_estimator
        )
        unit = max(abs(config.cvar_limit or 0.0), tail.spread) or 1.0
        gap, source = self._gap(predicted)
        moves = tail.is_ready and trains_policy
        if config.cvar_use_constraint and moves and math.isfinite(gap):
            self.dual.step(gap / unit)
        else:
            source = SOURCES[0]
        share = self.gate.share(explained_variance) if moves else self.gate.standing
        advantage = self._advantage(tail, rollout, estimates, agent)
        term, scale = self._term(advantage, rollout, estimates, agent)
        weight = self._weight(share, term, scale) if tail.is_ready else 0.0
        legacy = config.cvar_policy_mode == "critic_legacy"
        coefficient = weight + self.dual.multiplier if tail.is_ready else 0.0
        return RiskReport(
            advantage=self._mixed(estimates.raw_advantage, advantage, coefficient),
            factor=coefficient / self._divisor,
            risk=advantage,
            tail=tail,
            average=math.nan if self.average is None else self.average,
            predicted=predicted,
            realised=_cvar(self.window.sample(), config.cvar_alpha),
            unit=unit,
            gap=gap,
            multiplier=self.dual.multiplier,
            weight=weight,
            share=share,
            legacy=coefficient if legacy else 0.0,
            term=term,
            source=source,
            is_infeasible=self.dual.is_infeasible,
        )

    def measure(self, rollout: Rollout) -> Tail:
        """Return what the outcomes so far say; of parts of episodes, those of this rollout."""
        config = self.config.risk
        if config.cvar_quantity == "episode_return":
            sample, group = self.window.sample(), None
        else:
            steps = 1 if config.cvar_quantity == "step" else self.config.target.steps
            sample, group = partial_sums(rollout, min(steps, len(rollout.reward)))
        count, alpha = len(sample), config.cvar_alpha
        if count == 0:
            return NOTHING
        return Tail(
            samples=count,
            is_ready=count >= config.least_samples,
            raw=_cvar(sample, alpha),
            empirical=_cvar(winsorised(sample, config.cvar_winsor_pct), alpha),
            error=float(risk.empirical_cvar_error(sample, alpha=alpha, group=group)),
            level=float(risk.value_at_risk(sample, alpha=alpha)),
            spread=float(sample.std()) if count > 1 else 0.0,
        )

    def _follow(self, tail: Tail) -> None:
        """Take the estimate into its moving average, once there are enough outcomes."""
        if not tail.is_ready:
            return
        beta, before = self.config.risk.cvar_ema_beta, self.average
        new = tail.empirical
        self.average = new if before is None else beta * before + (1.0 - beta) * new

    def _gap(self, predicted: float) -> tuple[float, str]:
        """Return limit minus CVaR, and whose CVaR; NaN without a limit."""
        config = self.config.risk
        limit = math.nan if config.cvar_limit is None else config.cvar_limit
        if config.cvar_use_predicted_for_dual:
            return limit - predicted, SOURCES[2]
        return limit - (math.nan if self.average is None else self.average), SOURCES[1]

    def _advantage(
        self, tail: Tail, rollout: Rollout, estimates: Estimates, agent: Agent
    ) -> Tensor:
        config = self.config.risk
        if not (config.acts and tail.is_ready) or config.cvar_policy_mode == "critic_legacy":
            return torch.zeros_like(estimates.raw_advantage)
        lam = config.cvar_trace
        return risk_advantage(
            config.cvar_policy_mode,
            agent,
            rollout,
            estimates,
            alpha=config.cvar_alpha,
            level=tail.level,
            trace=None if lam == "target" else Trace(self.config.ppo.gamma, lam),
        )

    def _term(
        self, advantage: Tensor, rollout: Rollout, estimates: Estimates, agent: Agent
    ) -> tuple[float, float]:
        """Return the mean that the weight multiplies, and what counts as large beside it."""
        config, weight = self.config.risk, rollout.weight
        if config.cvar_policy_mode == "critic_legacy":
            read = legacy_cvar(
                agent, rollout.predicted, alpha=config.cvar_alpha, estimator=config.cvar_estimator
            )
            return float(mean(read, weight)), 1.0
        return float(mean(advantage, weight)), float(spread(estimates.raw_advantage, weight))

    def _weight(self, share: float, term: float, scale: float) -> float:
        """Return the fixed weight that acts: ramped, bounded, and its mean contribution too."""
        config = self.config.risk
        wanted = config.cvar_weight if config.cvar_use_penalty else 0.0
        weight = min(wanted * share, config.cvar_penalty_cap)
        bound = config.cvar_cap * scale
        return bound / abs(term) if weight * abs(term) > bound else weight

    def _mixed(self, raw: Tensor, advantage: Tensor, coefficient: float) -> Tensor:
        """Return (A + (w + lambda) A_risk) / (1 + lambda); A itself where nothing acts."""
        config = self.config.risk
        if coefficient == 0.0 or config.cvar_policy_mode == "critic_legacy":
            return raw
        return (raw + coefficient * advantage) / self._divisor

    @property
    def _divisor(self) -> float:
        return 1.0 + self.dual.multiplier if self.config.risk.cvar_rescale else 1.0

    def state_dict(self) -> dict[str, JsonValue]:
        """Return what a resumed run needs."""
        return RiskState(
            window=tuple(self.window.sample().tolist()),
            average=self.average,
            dual=self.dual.state(),
            gate=self.gate.state(),
        ).model_dump(mode="json")

    def load_state_dict(self, state: JsonValue) -> None:
        """Take up where another control stood.

        Raises:
            ArtifactError: if the state is not one of a control.
        """
        saved = read_state(RiskState, state, part="risk")
        self.window.replace(saved.window)
        self.average = saved.average
        self.dual.restore(saved.dual)
        self.gate.restore(saved.gate)


def winsorised(sample: Tensor, percent: float) -> Tensor:
    """Return the outcomes with those beyond the quantile of `percent` on either side pulled to it.

    It hides part of the tail, so it is off by default and bounded by the settings.
    """
    if percent == 0.0:
        return sample
    low = risk.value_at_risk(sample, alpha=percent / 100.0)
    high = -risk.value_at_risk(-sample, alpha=percent / 100.0)
    return torch.maximum(torch.minimum(sample, high), low)


def _cvar(sample: Tensor, alpha: float) -> float:
    return float(risk.empirical_cvar(sample, alpha=alpha)) if len(sample) else math.nan
