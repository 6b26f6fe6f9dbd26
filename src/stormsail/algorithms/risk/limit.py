"""A limit on CVaR that is kept by the values of all actions: level, mixing, all-action advantages.

Maximise the mean of G, the undiscounted return of an episode, subject to CVaR >= L. For a fixed
level nu and multiplier lambda that is the expected utility G + (lambda / alpha) min(G - nu, 0), so
risk is a second reward (`functional.risk.shortfall_increment`) with values of its own
(`action_critic`). Every update:

1. the steps of the rollout join the memory of the critic, its episodes those that can be replayed;
   the worst draws are played again with the present policy;
2. CVaR and value at risk are estimated from all recent outcomes, stratified (`draws`);
3. the level follows the value at risk, never below the limit, and towards the limit while it is
   broken (`functional.risk.shortfall_level`);
4. the critic learns; the advantages of all actions, of the mean and of the shortfall, are divided
   by slow scales;
5. the share x of the risk advantage is the one at which the next step of the policy moves CVaR to
   the aim at a given rate (`functional.risk.mixing_share`); lambda = x / (1 - x) in units of the
   scales;
6. the mixed advantage is divided by its own slow scale: near the limit both parts nearly cancel.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.risk.action_critic import ActionCritic, Frame
from stormsail.algorithms.risk.control import NOTHING, RiskReport, Tail
from stormsail.algorithms.risk.draws import DrawMemory
from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.rollout import Options, Rollout
from stormsail.core.generators import Generators
from stormsail.core.task import Task, episode_steps
from stormsail.functional import policy, risk, statistics
from stormsail.modules.actions import grid_log_prob
from stormsail.modules.agent import Agent

ROLLOUTS = 50
"""Rollouts whose steps the critic remembers."""

RECENT = 8
"""Updates after which an outcome no longer counts as that of the present policy."""

SCALE_BETA = 0.98
"""Weight of the past in the scales of both advantages: about 50 updates."""

MIXED_BETA = 0.9
"""The same for the scale of their mixture."""

LEAST_MIXED = 0.1
"""Least scale of the mixture, in units of its parts."""

BALANCE_STEP = 0.2
"""Share by which the rates at which both advantages move CVaR follow their newest estimate."""

LEVEL_STEP = 0.1
"""Share by which the level follows the value at risk with every update."""

GAIN = 1.5
"""Rate at which the distance to the aim is to be closed, over the size of a policy step."""

SLOPE = 2.0
"""Largest distance of the share from balance, for each size of the limit that the estimate is away
from the aim: noise of the estimate must not throw the share from one end to the other."""

INTEGRAL_STEP = 0.05
MOST_INTEGRAL = 0.5
MARGIN = 1.0
"""Standard errors of CVaR by which the aim lies inside the limit."""

MOST_MARGIN = 0.15
"""Largest distance of the aim from the limit, in sizes of the limit."""

MOST_SHARE = 1.0 - 1e-3
"""Largest share x of the risk advantage."""


class Mix(NamedTuple):
    """All-action advantages of a rollout, mixed."""

    options: Tensor
    """Scaled, [T, B, K]."""
    risk: Tensor
    """Risk advantage of every action, over alpha, in reward units, [T, B, K]."""
    probability: Tensor
    """Of every action when the rollout was made, [T, B, K]."""
    predicted: float
    """CVaR that the critic predicts where episodes begin."""
    loss: float
    """Of the critic."""


class LimitControl:
    """State of the control that carries over from update to update.

    Args:
        config: of the run.
        task: has `alternatives`; it is also what draws are replayed in.
        agent: is trained.
        generators: source of everything random.
    """

    def __init__(
        self, config: TrainConfig, task: Task[Any], agent: Agent, generators: Generators
    ) -> None:
        self.config, self.task, self.generators = config, task, generators
        self.horizon = episode_steps(task) or 1
        self.critic = ActionCritic(
            agent,
            actions=len(agent.network.grid),
            gamma=config.ppo.gamma,
            rollouts=ROLLOUTS,
            generator=generators.stream("risk.weights"),
        )
        self.draws = DrawMemory()
        self.updates = 0
        self.level = math.nan
        """nu."""
        self.share = 0.0
        """x."""
        self.scale: Tensor | None = None
        """Mean squares of both advantages, [2]."""
        self.mixed: Tensor | None = None
        """Mean square of the mixture."""
        self.balance: Tensor | None = None
        """Rates at which both advantages move CVaR, [2]."""
        self.integral = 0.0
        self.bound_updates = 0
        """Updates in a row with the largest share."""

    @property
    def multiplier(self) -> float:
        """Lambda, in units of the scales of both advantages."""
        return self.share / (1.0 - self.share)

    def act(
        self,
        rollout: Rollout,
        estimates: Estimates,
        agent: Agent,
        *,
        rate: float = 1.0,
        trains_policy: bool = True,
    ) -> RiskReport:
        """Add a rollout, train the critic, and mix the advantages of all actions.

        Args:
            rollout: the transitions, with `options`.
            estimates: of the rollout, in reward units.
            agent: as it was during the rollout.
            rate: share of the critic's first learning rate.
            trains_policy: whether the policy is trained in this update; while it is not, the share
                of risk stays as it is.
        """
        self._remember(rollout, agent)
        tail = self.measure()
        self._move_level(tail)
        mix = self._mix(rollout, agent, tail, rate=rate, moves=trains_policy)
        self.updates += 1
        return self._report(rollout, estimates, tail, mix)

    def _remember(self, rollout: Rollout, agent: Agent) -> None:
        """Add the rollout to both memories, and replay the worst draws."""
        self.critic.memory.add(agent, rollout, self.horizon, self._stream("memory"))
        self.draws.add(rollout, self.updates)
        if len(self.draws) >= self.task.batch:
            self.draws.replay(
                self.task,
                agent,
                self.draws.risky(self.task.batch, self.config.risk.cvar_alpha),
                steps=self.horizon,
                update=self.updates,
                generators=(self._stream("replay"), self._stream("task")),
            )

    def _stream(self, name: str) -> torch.Generator:
        return self.generators.stream(f"risk.{name}")

    def measure(self) -> Tail:
        """Return the tail of the present policy's outcomes over all remembered draws."""
        config = self.config.risk
        if len(self.draws) == 0:
            return NOTHING
        alpha = config.cvar_alpha
        sample = self.draws.sample(alpha, since=self.updates - RECENT)
        cvar = float(risk.empirical_cvar(sample.result, alpha=alpha, weight=sample.weight))
        level = float(risk.weighted_value_at_risk(sample.result, sample.weight, alpha=alpha))
        error = risk.stratified_cvar_error(
            sample.result, sample.weight, sample.is_risky, alpha=alpha, level=level,
            draws=len(self.draws),
        )
        mean = (sample.result * sample.weight).sum()
        variance = (sample.weight * (sample.result - mean).square()).sum()
        return Tail(
            samples=len(sample.result),
            is_ready=len(self.draws) >= config.least_samples,
            raw=cvar,
            empirical=cvar,
            error=float(error),
            level=level,
            spread=float(variance.sqrt()),
        )

    def _move_level(self, tail: Tail) -> None:
        limit = self.config.risk.cvar_limit
        if limit is None or not math.isfinite(tail.level):
            self.level = 0.0
            return
        goal = risk.shortfall_level(tail.level, tail.empirical, limit)
        if not math.isfinite(self.level) or self.updates == 0:
            self.level = goal
        self.level += LEVEL_STEP * (goal - self.level)

    def _mix(
        self, rollout: Rollout, agent: Agent, tail: Tail, *, rate: float, moves: bool
    ) -> Mix:
        config, options = self.config, rollout.options
        frame = self._frame(tail, rollout.reward.device)
        loss = self.critic.learn(agent, frame, self._stream("memory"), rate=rate)
        head, grid = agent.network.head, agent.network.grid
        probability = grid_log_prob(head, rollout.parameters, grid).exp()
        values = self.critic.predict(rollout, frame)
        following = self.critic.predict_following(agent, rollout, frame)[:, :, 0]
        mean = options.step.reward + config.ppo.gamma * torch.where(
            options.step.terminated, 0.0, following
        )
        alpha = config.risk.cvar_alpha
        raw_mean = policy.centred(mean, probability)
        raw_risk = policy.centred(values[:, :, 1], probability) / alpha
        weight = rollout.weight[..., None]
        sizes = torch.stack([_mean_square(x, weight) for x in (raw_mean, raw_risk)])
        self.scale = _followed(self.scale, sizes, SCALE_BETA, self.updates)
        unit = self.scale.sqrt().clamp(min=torch.finfo(sizes.dtype).tiny)
        scaled_mean, scaled_risk = raw_mean / unit[0], raw_risk / unit[1]
        mass = weight * probability * raw_risk * (self.horizon / weight.sum())
        rates = torch.stack(((mass * scaled_mean).sum(), (mass * scaled_risk).sum()))
        self.balance = _followed(self.balance, rates, 1.0 - BALANCE_STEP, self.updates)
        if moves and tail.is_ready:
            self._move_share(tail)
        mixed = (1.0 - self.share) * scaled_mean + self.share * scaled_risk
        size = _mean_square(mixed, weight)
        self.mixed = _followed(self.mixed, size, MIXED_BETA, self.updates)
        first = (values[:, :, 1] * probability).sum(-1)[rollout.length == 1]
        shortfall = float(first.mean()) if len(first) else math.nan
        return Mix(
            options=mixed / self.mixed.sqrt().clamp(min=LEAST_MIXED),
            risk=raw_risk,
            probability=probability,
            predicted=self.level + (shortfall + min(-self.level, 0.0)) / alpha,
            loss=float(loss),
        )

    def _frame(self, tail: Tail, device: torch.device) -> Frame:
        spread = tail.spread if tail.spread > 0.0 else 1.0
        numbers = torch.tensor([self.level, spread], dtype=torch.float32).to(device)
        return Frame(numbers[0], numbers[1], float(self.horizon))

    def _move_share(self, tail: Tail) -> None:
        limit = self.config.risk.cvar_limit
        if limit is None:
            return
        unit = self.unit(tail)
        gap = self.aim(tail) - tail.empirical
        mean_rate, risk_rate = self.balance.tolist()
        step = 1.0 if self.mixed is None else max(float(self.mixed.sqrt()), LEAST_MIXED)
        wanted = GAIN * gap * step + self.integral * risk_rate
        self.share = risk.mixing_share(
            wanted, mean_rate, risk_rate, most_change=SLOPE * abs(gap) / unit + abs(self.integral)
        )
        clipped = (self.share >= 1.0 and gap > 0.0) or (self.share <= 0.0 and gap < 0.0)
        if not clipped:
            self.integral += INTEGRAL_STEP * min(max(gap / unit, -0.5), 0.5)
            self.integral = min(max(self.integral, -MOST_INTEGRAL), MOST_INTEGRAL)
        self.share = min(self.share, MOST_SHARE)
        self.bound_updates = self.bound_updates + 1 if self.share == MOST_SHARE else 0

    def unit(self, tail: Tail) -> float:
        """Return the size that distances to the limit are measured in."""
        limit = abs(self.config.risk.cvar_limit or 0.0)
        return max(limit, self.config.risk.cvar_alpha * tail.spread) or 1.0

    def aim(self, tail: Tail) -> float:
        """Return the CVaR that is aimed at: inside the limit by what the estimate may be off."""
        limit = self.config.risk.cvar_limit or 0.0
        return limit + min(MARGIN * tail.error, MOST_MARGIN * self.unit(tail))

    def _report(
        self, rollout: Rollout, estimates: Estimates, tail: Tail, mix: Mix
    ) -> RiskReport:
        taken = (mix.risk * mix.probability).sum(-1)
        return RiskReport(
            advantage=estimates.raw_advantage,
            risk=taken,
            tail=tail,
            average=tail.empirical,
            predicted=mix.predicted,
            realised=tail.empirical,
            unit=self.unit(tail),
            gap=(self.config.risk.cvar_limit or math.nan) - tail.empirical,
            multiplier=self.multiplier,
            weight=0.0,
            share=self.share,
            legacy=0.0,
            term=0.0,
            source="empirical",
            is_infeasible=False,
            factor=self.share,
            options=mix.options,
            level=self.level,
            loss=mix.loss,
        )


def _mean_square(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean square over rows and actions."""
    return (x.square() * weight).sum() / (weight.sum() * x.shape[-1])


def _followed(before: Tensor | None, new: Tensor, beta: float, updates: int) -> Tensor:
    """Return the moving average; in the first updates the plain mean."""
    if before is None:
        return new
    weight = min(beta, updates / (updates + 1.0))
    return weight * before + (1.0 - weight) * new
