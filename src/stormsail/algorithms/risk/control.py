"""CVaR control: estimate the tail, update the multiplier, mix the risk advantage in.

It acts between estimates and normalisation. The multiplier follows the CVaR of observed outcomes,
in the unit of the limit; the CVaR that the critics predict is reported beside it and followed only
if configured.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from stormsail.algorithms.config import RiskConfig, TrainConfig
from stormsail.algorithms.risk.action_critic import LEAST_RATE, SHORTFALL, ActionCritic, frame_of
from stormsail.algorithms.risk.advantage import (
    Trace,
    predicted_cvar,
    predicted_cvar_of_some,
    risk_advantage,
)
from stormsail.algorithms.risk.multiplier import DualState, RiskDual
from stormsail.algorithms.risk.planned import Window, carried, decide, tail_of
from stormsail.algorithms.risk.report import (
    LEVEL_STEP,
    NOTHING,
    SOURCES,
    Decision,
    Plan,
    RiskReport,
    Tail,
    aim_inside,
)
from stormsail.algorithms.risk.saved import check_number
from stormsail.algorithms.risk.window import EpisodeWindow, partial_sums
from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.graphs import Recorder, waiting_allowed
from stormsail.algorithms.update.losses import legacy_cvar
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.config import Config
from stormsail.functional import risk, statistics
from stormsail.modules.agent import Agent


class GateState(Config):
    """Saved state of the gate."""

    is_open: bool
    """Whether the weight acts."""
    updates: int
    """For how many updates in a row it has."""


class ActivationGate:
    """Share of the fixed risk weight that acts, from the explained variance of the critics.

    The gate opens at a threshold, shuts at a margin below it, and ramps the weight up while open.
    An unknown explained variance neither opens nor shuts it, and nothing does while there are too
    few outcomes or only critics learn. The constraint does not pass through the gate: in a market
    whose returns cannot be predicted a limit would never hold.
    """

    def __init__(self, config: RiskConfig) -> None:
        self.config = config
        self.is_open = False
        self.updates = 0

    def share(self, explained_variance: float) -> float:
        """Update the gate with an explained variance; return the share of the weight that acts."""
        config = self.config
        if explained_variance >= config.cvar_activation_threshold:
            self.is_open = True
        elif (
            explained_variance
            < config.cvar_activation_threshold - config.cvar_activation_hysteresis
        ):
            self.is_open = False
        self.updates = self.updates + 1 if self.is_open else 0
        return self.standing

    @property
    def standing(self) -> float:
        """Share of the weight that acts now."""
        if not self.is_open:
            return 0.0
        ramp = self.config.cvar_ramp_updates
        return 1.0 if ramp == 0 else min(1.0, self.updates / ramp)

    def state(self) -> GateState:
        """Return the state for a checkpoint."""
        return GateState(is_open=self.is_open, updates=self.updates)

    def restore(self, state: GateState) -> None:
        """Restore a saved state."""
        self.is_open, self.updates = state.is_open, state.updates


class RiskState(Config):
    """Saved state of the control."""

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


class RiskControl:
    """State of the CVaR control that carries over from update to update.

    Args:
        config: of the run.
        critic: of the shortfall, for `risk.form = "critic"` on a task that says only what the
            taken action made; None for the other form.
        generator: of that critic's memory.
        horizon: steps of an episode; None where nothing says.
        captured: whether what is made of a whole rollout becomes a CUDA graph.
    """

    def __init__(
        self,
        config: TrainConfig,
        critic: ActionCritic | None = None,
        generator: torch.Generator | None = None,
        horizon: int | None = None,
        *,
        captured: bool = False,
    ) -> None:
        self.config = config
        self._recorder = Recorder(captured=captured)
        self.critic, self._generator, self._horizon = critic, generator, horizon
        self.level = math.nan
        """nu of the shortfall that the critic learns; NaN without one."""
        self.window = EpisodeWindow(config.risk.cvar_window)
        self.dual = RiskDual(config.risk)
        self.gate = ActivationGate(config.risk)
        self.average: float | None = None

    def act(
        self,
        rollout: Rollout,
        estimates: Estimates,
        explained_variance: float,
        agent: Agent,
        *,
        trains_policy: bool = True,
        rate: float = 1.0,
    ) -> RiskReport:
        """Add a rollout, update the multiplier once, and mix the advantages.

        Args:
            rollout: the transitions.
            estimates: of the rollout, in reward units.
            explained_variance: of its returns by the critics.
            agent: owns the critics, as they were during the rollout.
            trains_policy: whether the policy is trained in this update. While it is not, neither
                the multiplier nor the ramp moves: no policy could have responded to them.
            rate: learning rate over the first one, which that of a risk critic follows.
        """
        predicted = self._look(rollout, agent)
        tail = self.measure(rollout)
        decided = self._decide(tail, predicted, explained_variance, trains_policy=trains_policy)
        if self.critic is None:
            advantage, loss = self._advantage(tail, rollout, estimates, agent), None
        else:
            advantage, loss = self._learned(tail, rollout, agent, rate)
        terms = self._terms(advantage, rollout, estimates, agent)
        if loss is None:
            loss = torch.full_like(terms[0], torch.nan)
        with waiting_allowed():
            term, scale, lost = torch.cat((terms, loss.double()[None])).tolist()
        weight, coefficient = self._acting(tail, decided, term, scale)
        mixed = self._mixed(estimates.raw_advantage, advantage, coefficient)
        return self._report(tail, decided, mixed, advantage, weight, coefficient, term, lost)

    @property
    def defers(self) -> bool:
        """Whether an update can go on before the host knows what the control decides.

        Not where a critic learns or a setting of an earlier system is chosen: there the host looks.
        """
        config = self.config.risk
        return (
            self.critic is None
            and config.cvar_quantity == "episode_return"
            and config.cvar_policy_mode != "critic_legacy"
            and config.cvar_estimator == "dirac"
            and config.cvar_winsor_pct == 0.0
            and not config.cvar_use_predicted_for_dual
            and not config.logs_gradient
        )

    def plan(
        self,
        rollout: Rollout,
        estimates: Estimates,
        explained_variance: Tensor,
        agent: Agent,
        *,
        trains_policy: bool,
    ) -> Plan:
        """Mix the advantages as `act` does, without waiting and without a change of the state."""
        given = (rollout, estimates, explained_variance, self._carried(rollout), trains_policy)
        return self._recorder("tail and limit", partial(self._planned, agent), given)

    def _look(self, rollout: Rollout, agent: Agent) -> float:
        """Add the episodes of a rollout to the window; return the CVaR that critics predict.

        Where functions are recorded it is found on the device, and read with the window.
        """
        config = self.config.risk
        if not self._recorder.captured or config.cvar_estimator != "dirac":
            self.window.add(rollout)
            return predicted_cvar(
                agent, rollout, alpha=config.cvar_alpha, estimator=config.cvar_estimator
            )
        given = (rollout, self._carried(rollout))
        row = self._recorder("outcomes", partial(self._outcomes, agent), given)
        with waiting_allowed():
            predicted, count, *window = row.tolist()
        self._replace_window(count, window)
        return float(predicted)

    def _outcomes(self, agent: Agent, given: tuple[Rollout, Tensor]) -> Tensor:
        """Return what the host reads of a rollout, float64: predicted CVaR, count and window."""
        rollout, row = given
        before, places = carried(row)
        window = Window(places, before.count).add(rollout)
        predicted = predicted_cvar_of_some(agent, rollout, alpha=self.config.risk.cvar_alpha)
        header = torch.stack((predicted.double(), window.count))
        return torch.cat((header, window.outcomes))

    def _replace_window(self, count: float, places: Sequence[float]) -> None:
        self.window.replace(places[len(places) - int(count) :])

    def _carried(self, rollout: Rollout) -> Tensor:
        """Return what the device has to know of the state: `Carried`, and the window."""
        dual, missing = self.dual, self.window.size - len(self.window)
        row = torch.tensor(
            (
                math.nan if self.average is None else self.average,
                dual.multiplier,
                dual.integral,
                math.nan if dual.gap is None else dual.gap,
                float(self.gate.is_open),
                float(self.gate.updates),
                float(len(self.window)),
                *[0.0] * missing,
                *self.window,
            ),
            dtype=torch.float64,
        )
        device = rollout.reward.device
        # memory that is pinned is copied without waiting for the device
        return row if device.type == "cpu" else row.pin_memory().to(device, non_blocking=True)

    def _planned(
        self, agent: Agent, given: tuple[Rollout, Estimates, Tensor, Tensor, bool]
    ) -> Plan:
        rollout, estimates, explained_variance, row, trains_policy = given
        config = self.config.risk
        before, places = carried(row)
        window = Window(places, before.count).add(rollout)
        is_ready = window.count >= config.least_samples
        tail = tail_of(window, alpha=config.cvar_alpha)
        advantage = torch.zeros_like(estimates.raw_advantage)
        if config.acts:
            level = torch.where(is_ready, tail.level, 0.0)
            risky = self._risk_advantage(rollout, estimates, agent, level)
            advantage = torch.where(is_ready, risky, advantage)
        raw = estimates.raw_advantage
        term, scale = _mean_and_scale((advantage, raw, rollout.weight)).unbind()
        coefficient, multiplier = decide(
            config,
            before,
            tail,
            explained_variance,
            term,
            scale,
            is_ready=is_ready,
            trains_policy=trains_policy,
        )
        divisor = 1.0 + multiplier if config.cvar_rescale else torch.ones_like(multiplier)
        mixed = torch.where(coefficient == 0.0, raw, (raw + coefficient * advantage) / divisor)
        predicted = predicted_cvar_of_some(agent, rollout, alpha=config.cvar_alpha)
        header = torch.stack((predicted.double(), term, scale, window.count))
        return Plan(mixed, advantage, torch.cat((header, window.outcomes)))

    def conclude(
        self, plan: Plan, numbers: Tensor, explained_variance: float, *, trains_policy: bool
    ) -> RiskReport:
        """Take over what a plan found, once its numbers are on the host; see `act`."""
        predicted, term, scale, count, *window = numbers.tolist()
        self._replace_window(count, window)
        tail = self.tail(self.window.sample())
        decided = self._decide(tail, predicted, explained_variance, trains_policy=trains_policy)
        weight, coefficient = self._acting(tail, decided, term, scale)
        return self._report(
            tail, decided, plan.mixed, plan.risk, weight, coefficient, term, math.nan
        )

    def _decide(
        self, tail: Tail, predicted: float, explained_variance: float, *, trains_policy: bool
    ) -> Decision:
        """Update moving average, multiplier and gate once."""
        config = self.config.risk
        self._follow(tail)
        unit = max(abs(config.cvar_limit or 0.0), tail.spread) or 1.0
        gap, source = self._gap(predicted)
        aim = self._aim(tail, unit)
        moves = tail.is_ready and trains_policy
        if config.cvar_use_constraint and moves and math.isfinite(gap):
            self.dual.step((gap + aim - (config.cvar_limit or 0.0)) / unit)
        else:
            source = SOURCES[0]
        share = self.gate.share(explained_variance) if moves else self.gate.standing
        return Decision(predicted, unit, gap, source, aim, share)

    def _acting(
        self, tail: Tail, decided: Decision, term: float, scale: float
    ) -> tuple[float, float]:
        """Return the fixed weight that acts, and the coefficient of the risk advantage."""
        weight = self._weight(decided.share, term, scale) if tail.is_ready else 0.0
        return weight, weight + self.dual.multiplier if tail.is_ready else 0.0

    def _report(
        self,
        tail: Tail,
        decided: Decision,
        mixed: Tensor,
        advantage: Tensor,
        weight: float,
        coefficient: float,
        term: float,
        loss: float,
    ) -> RiskReport:
        config = self.config.risk
        legacy = config.cvar_policy_mode == "critic_legacy"
        return RiskReport(
            advantage=mixed,
            factor=coefficient / self._divisor,
            risk=advantage,
            tail=tail,
            average=math.nan if self.average is None else self.average,
            predicted=decided.predicted,
            realised=self._realised(tail),
            unit=decided.unit,
            gap=decided.gap,
            multiplier=self.dual.multiplier,
            weight=weight,
            share=decided.share,
            legacy=coefficient if legacy else 0.0,
            term=term,
            source=decided.source,
            is_infeasible=self.dual.is_infeasible,
            level=self.level,
            loss=loss,
            aim=decided.aim,
        )

    def measure(self, rollout: Rollout) -> Tail:
        """Return the tail of the outcomes; of parts of episodes, those of this rollout."""
        config = self.config.risk
        if config.cvar_quantity == "episode_return":
            sample, group = self.window.sample(), None
        else:
            steps = 1 if config.cvar_quantity == "step" else self.config.target.steps
            sample, group = partial_sums(rollout, min(steps, len(rollout.reward)))
        return self.tail(sample, group)

    def tail(self, sample: Tensor, group: Tensor | None = None) -> Tail:
        """Return the tail of a sample, float64 [n] on the CPU, in groups that depend on each other.

        Without groups no outcome depends on another.
        """
        config = self.config.risk
        count, alpha = len(sample), config.cvar_alpha
        if count == 0:
            return NOTHING
        raw, percent = _cvar(sample, alpha), config.cvar_winsor_pct
        return Tail(
            samples=count,
            is_ready=count >= config.least_samples,
            raw=raw,
            empirical=raw if percent == 0.0 else _cvar(winsorised(sample, percent), alpha),
            error=float(risk.empirical_cvar_error(sample, alpha=alpha, group=group)),
            level=float(risk.value_at_risk(sample, alpha=alpha)),
            spread=float(sample.std()) if count > 1 else 0.0,
        )

    def _follow(self, tail: Tail) -> None:
        """Update the moving average of the estimate, once there are enough outcomes."""
        if not tail.is_ready:
            return
        beta, before = self.config.risk.cvar_ema_beta, self.average
        new = tail.empirical
        self.average = new if before is None else beta * before + (1.0 - beta) * new

    @property
    def _limit(self) -> float:
        """Least CVaR; NaN without a limit."""
        limit = self.config.risk.cvar_limit
        return math.nan if limit is None else limit

    def _aim(self, tail: Tail, unit: float) -> float:
        """Return the CVaR that is aimed at: the limit itself without a critic; NaN without one."""
        if self.critic is None:
            return self._limit
        return aim_inside(self._limit, tail, unit, margin=self.config.risk.cvar_margin)

    def _gap(self, predicted: float) -> tuple[float, str]:
        """Return limit minus CVaR, and the source of the CVaR; NaN without a limit."""
        if self.config.risk.cvar_use_predicted_for_dual:
            return self._limit - predicted, SOURCES[2]
        return self._limit - (math.nan if self.average is None else self.average), SOURCES[1]

    def _advantage(
        self, tail: Tail, rollout: Rollout, estimates: Estimates, agent: Agent
    ) -> Tensor:
        config = self.config.risk
        if not (config.acts and tail.is_ready) or config.cvar_policy_mode == "critic_legacy":
            return torch.zeros_like(estimates.raw_advantage)

        def advantage(given: tuple[Rollout, Estimates, Tensor]) -> Tensor:
            rollout, estimates, level = given
            return self._risk_advantage(rollout, estimates, agent, level)

        device = rollout.reward.device
        level = torch.full((), tail.level, dtype=torch.float64, device=device)
        return self._recorder("risk advantages", advantage, (rollout, estimates, level))

    def _risk_advantage(
        self, rollout: Rollout, estimates: Estimates, agent: Agent, level: Tensor
    ) -> Tensor:
        config = self.config.risk
        lam = config.cvar_trace
        trace = None if lam == "target" else Trace(self.config.ppo.gamma, lam)
        return risk_advantage(
            config.cvar_policy_mode,
            agent,
            rollout,
            estimates,
            alpha=config.cvar_alpha,
            level=level,
            trace=trace,
        )

    def _learned(
        self, tail: Tail, rollout: Rollout, agent: Agent, rate: float
    ) -> tuple[Tensor, Tensor | None]:
        """Train the risk critic; return what each step added to the shortfall it expects, [T, B].

        (rho_t + V(s_{t+1}) - V(s_t)) / alpha, one step at a time: what happened later is in V.
        """
        config, critic = self.config.risk, _present(self.critic)
        memory = _present(self._generator)
        critic.memory.add(agent, rollout, self._horizon, memory)
        if not tail.is_ready or config.cvar_limit is None:
            return torch.zeros_like(rollout.reward), None
        level, cvar = torch.tensor((tail.level, tail.empirical), dtype=torch.float64)
        goal = float(risk.shortfall_level(level, cvar, limit=config.cvar_limit))
        self.level = (
            goal if math.isnan(self.level) else self.level + LEVEL_STEP * (goal - self.level)
        )
        frame = frame_of(self.level, tail.spread, self._horizon, rollout.reward.device)
        loss = critic.learn(agent, frame, memory, rate=max(rate, LEAST_RATE))
        value, _ = critic.predict(rollout, frame)
        following = critic.predict_following(agent, rollout, frame, SHORTFALL)[..., 0]
        before = rollout.return_so_far.to(value.dtype)
        added = risk.shortfall_increment(rollout.reward, before, level=frame.level)
        change = added + torch.where(rollout.ended, 0.0, following) - value
        return torch.where(rollout.weight > 0.0, change / config.cvar_alpha, 0.0), loss

    @property
    def multiplier(self) -> float:
        """Lambda."""
        return self.dual.multiplier

    @property
    def grid(self) -> Tensor | None:
        """What a rollout must record: of no other action for a critic, None for nothing at all."""
        return None if self.critic is None else torch.empty(0)

    def _terms(
        self, advantage: Tensor, rollout: Rollout, estimates: Estimates, agent: Agent
    ) -> Tensor:
        """Return the mean risk advantage, and the scale that its contribution is bounded by."""
        config, weight = self.config.risk, rollout.weight
        if config.cvar_policy_mode == "critic_legacy":
            term = legacy_cvar(
                agent, rollout.predicted, alpha=config.cvar_alpha, estimator=config.cvar_estimator
            )
            mean = statistics.weighted_mean(term.double(), weight, empty=math.nan)
            return torch.stack((mean, torch.ones_like(mean)))
        given = (advantage, estimates.raw_advantage, weight)
        return self._recorder("terms of risk", _mean_and_scale, given)

    def _weight(self, share: float, term: float, scale: float) -> float:
        """Return the fixed weight that acts: ramped, and bounded in itself and in its effect."""
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

    def _realised(self, tail: Tail) -> float:
        """Return the CVaR of the returns of the episodes of the window."""
        if self.config.risk.cvar_quantity == "episode_return":
            return tail.raw
        return _cvar(self.window.sample(), self.config.risk.cvar_alpha)

    @property
    def _divisor(self) -> float:
        return 1.0 + self.dual.multiplier if self.config.risk.cvar_rescale else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        plain = RiskState(
            window=tuple(self.window.sample().tolist()),
            average=self.average,
            dual=self.dual.state(),
            gate=self.gate.state(),
        ).model_dump(mode="json")
        if self.critic is None:
            return plain
        return {"plain": plain, "critic": self.critic.state_dict(), "level": self.level}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401 - a nest of tables and tensors
        """Restore a saved state.

        Raises:
            ArtifactError: if the state is not one of such a control.
            KeyError: if that of the critic is missing.
        """
        if self.critic is not None:
            check_number(state["level"], float, name="level")
            self.critic.load_state_dict(state["critic"])
            self.level, state = state["level"], state["plain"]
        saved = RiskState.from_state(state, part="risk")
        self.window.replace(saved.window)
        self.average = saved.average
        self.dual.restore(saved.dual)
        self.gate.restore(saved.gate)


def _mean_and_scale(given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the weighted mean of risk advantages, and the deviation of others, float64 [2]."""
    advantage, raw, weight = given
    mean = statistics.weighted_mean(advantage.double(), weight, empty=math.nan)
    return torch.stack((mean, statistics.weighted_std(raw, weight).double()))


T = TypeVar("T")


def _present(part: T | None) -> T:
    if part is None:
        raise LookupError("a control without a risk critic cannot learn one")
    return part


def winsorised(sample: Tensor, percent: float) -> Tensor:
    """Return the outcomes, those beyond the quantile of `percent` on either side set to it.

    It hides part of the tail, so it is off by default and bounded by the settings.
    """
    if percent == 0.0:
        return sample
    low = risk.value_at_risk(sample, alpha=percent / 100.0)
    high = -risk.value_at_risk(-sample, alpha=percent / 100.0)
    return torch.maximum(torch.minimum(sample, high), low)


def _cvar(sample: Tensor, alpha: float) -> float:
    return float(risk.empirical_cvar(sample, alpha=alpha)) if len(sample) else math.nan
