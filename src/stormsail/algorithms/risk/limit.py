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
4. with `risk.cvar_trust = "verified"` what the critic says of the rollout is compared with its
   outcomes, and where outcomes refute how risk differs from state to state, that part is made
   smaller (`functional.risk.calibration_slope`);
5. the critic learns, and where rewards depend on the account, what actions add from episodes that
   are played on after every action (`branches`); the advantages of all actions, of the mean and of
   the shortfall, are divided by slow scales;
6. the share x of the risk advantage is the one at which the next step of the policy moves CVaR to
   the aim at a given rate (`functional.risk.mixing_share`), and all of it while the limit is broken
   that no held action keeps; lambda = x / (1 - x) in units of the scales;
7. the mixed advantage is divided by its own slow scale: near the limit both parts nearly cancel;
8. with `risk.cvar_floor`, where an action that is held throughout keeps the limit and earns more
   than the policy does, by more than chance, the policy is pulled to it
   (`functional.risk.floor_share`).
"""

import math
from typing import Any

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.risk.action_critic import (
    LEAST_RATE,
    REWARD,
    ActionCritic,
    Frame,
    first_weights,
    frame_of,
    recorded,
)
from stormsail.algorithms.risk.branches import (
    LEAST_SHARE,
    Branches,
    measure_account_share,
    play_branches,
)
from stormsail.algorithms.risk.draws import CAPACITY, DrawMemory, held_returns
from stormsail.algorithms.risk.draws_tail import measure_tail
from stormsail.algorithms.risk.report import (
    LEVEL_STEP,
    OTHER_DRAWS,
    SOURCES,
    Mix,
    RiskReport,
    Tail,
    aim_inside,
)
from stormsail.algorithms.risk.saved import Fit, check_number, check_tensor
from stormsail.algorithms.update.estimates import Estimates
from stormsail.algorithms.update.graphs import Recorder, captures, waiting_allowed
from stormsail.algorithms.update.rollout import Rollout
from stormsail.core.generators import Generators
from stormsail.core.task import DiscreteActions, Task, draw_places, episode_steps, with_batch
from stormsail.functional import policy, risk
from stormsail.modules.actions import grid_log_prob
from stormsail.modules.agent import Agent

ROLLOUTS = 50
"""Rollouts whose steps the critic remembers."""

RECENT = 3
"""Outcomes of the last updates count as those of the present policy: so many times as an episode
spans rollouts."""

UNLIMITED_CAPACITY = 512
"""Episodes that are remembered without a limit: only the spread of their returns is of use."""

HELD_AT_ONCE = 4096
"""Episodes that one graph plays with every held action, at most."""

REPLAYED_ROUNDS = 2
"""Draws are replayed once in so many episodes."""

REPLAYED = 512
"""Draws that are replayed at a time: about as many as are among the worst of a run of usual length,
so that each of them has an outcome of the present policy. Replaying them side by side costs little
more than replaying a few."""

SCALE_BETA = 0.98
"""Weight of the past in the scales of both advantages: about 50 updates."""

MIXED_BETA = 0.9
"""The same for the scale of their mixture."""

LEAST_MIXED = 0.1
"""Least scale of the mixture, in units of its parts."""

BALANCE_STEP = 0.2
"""Share by which the rates at which both advantages move CVaR follow their newest estimate."""

GAIN = 1.5
"""Rate at which the distance to the aim is to be closed, over the size of a policy step."""

SLOPE = 2.0
"""Largest distance of the share from balance, for each size of the limit that the estimate is away
from the aim: noise of the estimate must not throw the share from one end to the other."""

INTEGRAL_STEP = 0.05
"""Step of the integral for a gap of one size of the limit: what a wrong critic needs more."""

MOST_INTEGRAL = 0.5
"""Largest size of the integral, in rates of the risk advantage."""

VERIFIED = 20
"""Rollouts by which the critic is verified: the last ones."""

LEAST_VERIFIED = 10
"""Rollouts before which the critic is trusted whole: the standard error of fewer is itself a guess,
and so is what the critic learned from them."""

TRUSTED_ERRORS = 2.0
"""Standard errors above the measured slope up to which the critic is trusted."""

FLOOR_ERRORS = 2.0
"""Standard errors by which a held action must earn more than the policy to pull it."""

HELD = 5
"""Of continuous actions, how many are held throughout each draw: both ends and evenly between."""

MOST_SHARE = 1.0 - 1e-3
"""Largest share x of the risk advantage."""

NORMAL_95 = 1.959963984540054
"""Standard errors on either side of an estimate that hold 95 % of a normal distribution."""


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
        self._network = agent.network
        spare = torch.Generator(device=task.device).manual_seed(0)
        state = task.reset(spare)[0]
        self._state = type(state)
        self._errors = 1.0 if draw_places(task, state) is None else OTHER_DRAWS
        self.horizon = episode_steps(task) or 1
        self.rounds = math.ceil(self.horizon / config.ppo.n_steps)
        """Rollouts that an episode spans."""
        self.critic = ActionCritic(
            agent,
            actions=len(agent.network.grid),
            gamma=config.ppo.gamma,
            rollouts=ROLLOUTS,
            generator=first_weights(generators),
            captured=captures(task, config),
        )
        streams = [self._stream(name) for name in ("replay", "task")]
        self._recorder = Recorder(captured=captures(task, config), generators=streams)
        self._sides: dict[int, Task[Any]] = {}
        """The task for so many episodes side by side, where they are played by a graph."""
        limited = config.risk.cvar_limit is not None
        self.branches = (
            limited and measure_account_share(task, self.grid, steps=self.horizon) >= LEAST_SHARE
        )
        """Whether what actions add is learned from episodes that are played on after them."""
        self.draws = DrawMemory(CAPACITY if limited else UNLIMITED_CAPACITY)
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
        """Sum of gaps, bounded."""
        self.verified: Tensor | None = None
        """Of the last rollouts, how predictions and outcomes agreed, [n, 2]."""
        self.bound_updates = 0
        """Updates in a row with the largest share."""

    @property
    def defers(self) -> bool:
        """Whether an update can go on before the host knows what the control decides."""
        return False

    @property
    def multiplier(self) -> float:
        """Lambda, in units of the scales of both advantages."""
        return self.share / (1.0 - self.share)

    @property
    def grid(self) -> Tensor:
        """Actions whose outcomes a rollout records, [K], as the task takes them."""
        network = self._network
        return network.head.to_task(network.grid[:, None]).flatten()

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
        """Add a rollout, train the critic, and mix the advantages of all actions.

        Args:
            rollout: the transitions, with `options`.
            estimates: of the rollout, in reward units.
            explained_variance: not used; a limit must hold where returns cannot be predicted.
            agent: as it was during the rollout.
            rate: learning rate over the first one; the critic's follows it down to a tenth.
            trains_policy: whether the policy is trained in this update; while it is not, the share
                of risk stays as it is.
        """
        del explained_variance
        self._remember(rollout, agent)
        tail = self.measure()
        self._move_level(tail)
        mix = self._mix(rollout, agent, tail, rate=max(rate, LEAST_RATE), moves=trains_policy)
        self.updates += 1
        return self._report(estimates, tail, mix)

    def _remember(self, rollout: Rollout, agent: Agent) -> None:
        """Add the rollout to both memories, and replay the worst draws."""
        self.critic.memory.add(agent, rollout, self.horizon, self._stream("memory"))
        self.draws.add(rollout, self.updates, actions=len(self._held_actions))
        # not in every update: fewer and larger calls
        is_due = self.updates % (REPLAYED_ROUNDS * self.rounds) == 0
        if self.config.risk.cvar_limit is None or not is_due:
            return
        self.draws.score_new(self._held)
        if len(self.draws) >= self.task.batch:
            self.draws.replay(
                self._side(REPLAYED),
                agent,
                self.draws.risky(REPLAYED, self.config.risk.cvar_alpha),
                steps=self.horizon,
                update=self.updates,
                generators=(self._stream("replay"), self._stream("task")),
                record=self._recorder,
            )

    @property
    def _held_places(self) -> Tensor:
        """Places of the actions that draws are scored by: all classes, or some of a grid."""
        count = len(self.grid)
        if isinstance(self.task.actions, DiscreteActions):
            return torch.arange(count, device=self.task.device)
        return torch.linspace(0, count - 1, HELD, device=self.task.device).round().long()

    @property
    def _held_actions(self) -> Tensor:
        """Actions that draws are scored by, as the task takes them."""
        grid = self.grid
        return grid[self._held_places.to(grid.device)]

    def _held(self, state: tuple[Tensor, ...]) -> Tensor:
        """Return what actions make of episodes if held throughout, [n, K]."""
        if not self._recorder.captured:
            return self._hold(state)
        # a graph has one number of episodes: the last one stands in for those that are missing
        count = min(self.task.batch, HELD_AT_ONCE)
        place = torch.arange(-(-len(state[0]) // count) * count, device=self.task.device)
        parts = [
            self._recorder(
                "draws whose actions are held",
                self._hold,
                tuple(column[chosen] for column in state),
            ).clone()
            for chosen in place.clamp(max=len(state[0]) - 1).split(count)
        ]
        return torch.cat(parts)[: len(state[0])]

    def _hold(self, state: tuple[Tensor, ...]) -> Tensor:
        return held_returns(
            self._side(len(state[0]) * len(self._held_actions)),
            self._state(*state),
            self._held_actions,
            steps=self.horizon,
            generator=self._stream("task"),
        )

    def _side(self, count: int) -> Task[Any]:
        """Return the task for so many episodes; where a graph plays them compiled as the task is.

        They are kept then: there are two such numbers, and to compile one takes seconds.
        """
        if not self._recorder.captured:
            return with_batch(self.task, count)
        if count not in self._sides:
            self._sides[count] = with_batch(self.task, count, compiled=True)
        return self._sides[count]

    def _stream(self, name: str) -> torch.Generator:
        return self.generators.stream(f"risk.{name}")

    def measure(self) -> Tail:
        """Return the tail of the present policy's outcomes over all remembered draws."""
        since = self.updates - RECENT * self.rounds
        return measure_tail(self.draws, self.task, self._state, self.config.risk, since=since)

    def _move_level(self, tail: Tail) -> None:
        limit = self.config.risk.cvar_limit
        if limit is None or not math.isfinite(tail.level):
            self.level = 0.0
            return
        level, cvar = torch.tensor((tail.level, tail.empirical), dtype=torch.float64)
        goal = float(risk.shortfall_level(level, cvar, limit=limit, held=self._best_held()))
        if not math.isfinite(self.level) or self.updates == 0:
            self.level = goal
        self.level += LEVEL_STEP * (goal - self.level)

    def _mix(self, rollout: Rollout, agent: Agent, tail: Tail, *, rate: float, moves: bool) -> Mix:
        """Train the critic; return the mixed advantages of all actions."""
        frame = frame_of(self.level, tail.spread, self.horizon, rollout.reward.device)
        trust = self._verify(rollout, agent, frame)
        loss = self.critic.learn(
            agent,
            frame,
            self._stream("memory"),
            rollout=rollout,
            branches=self._branches(rollout, agent),
            rate=rate,
        )
        probability = grid_log_prob(
            agent.network.head, rollout.parameters, agent.network.grid
        ).exp()
        value, added = self.critic.predict(rollout, frame)
        added = risk.shrink_to_mean(added, rollout.weight, share=trust)
        raw_mean = policy.centred(self._mean_values(rollout, agent, frame), probability)
        raw_risk = policy.centred(added, probability) / self.config.risk.cvar_alpha
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
        self.mixed = _followed(self.mixed, _mean_square(mixed, weight), MIXED_BETA, self.updates)
        divisor = self.mixed.sqrt().clamp(min=LEAST_MIXED)
        likeliest = probability.argmax(-1, keepdim=True)
        best, floor = self._floor(tail)
        size = _mean_square(raw_risk, weight).sqrt()
        with waiting_allowed():
            below = self._shortfall(rollout, value)
            numbers = torch.stack([x.double() for x in (size, below, loss, trust, floor)]).tolist()
        return Mix(
            options=risk.pull_to_action(mixed / divisor, probability, best, share=floor),
            risk_options=self.share * scaled_risk / divisor,
            taken=raw_risk.gather(-1, likeliest)[..., 0],
            term=numbers[0],
            predicted=self._predicted(numbers[1]),
            loss=numbers[2],
            trust=numbers[3],
            floor=numbers[4],
        )

    def _branches(self, rollout: Rollout, agent: Agent) -> Branches | None:
        """Play episodes on after every action, where what follows depends on the account."""
        if not self.branches:
            return None
        return play_branches(
            self.task,
            agent,
            rollout,
            self.grid,
            steps=self.horizon,
            generators=(self._stream("branches"), self._stream("task")),
        )

    def _floor(self, tail: Tail) -> tuple[Tensor, Tensor]:
        """Return the best action that keeps the limit if held throughout, and its pull.

        Its place among all actions, and the share; 0 where none keeps the limit, or the policy is
        not proven to earn less than it.
        """
        device, alpha = self.task.device, self.config.risk.cvar_alpha
        nothing = torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), device=device)
        if not (self.config.risk.cvar_floor and tail.is_ready):
            return nothing
        held = self.draws.constant_returns()  # [n, K]
        keeps = risk.empirical_cvar(held.T.contiguous(), alpha=alpha) >= self.aim(tail)
        best = torch.where(keeps, held.mean(0), -torch.inf).argmax()
        gap, weight = self.draws.gaps(best, alpha, since=self.updates - RECENT * self.rounds)
        share = risk.floor_share(gap, weight, errors=FLOOR_ERRORS).float()
        return self._held_places[best], torch.where(keeps.any(), share, 0.0)

    def _verify(self, rollout: Rollout, agent: Agent, frame: Frame) -> Tensor:
        """Return how far differences of risk between states are trusted, from 0 to 1."""
        if self.config.risk.cvar_trust == "full":
            return torch.ones((), device=rollout.reward.device)
        if self.critic.updates > 0:  # what the first weights say is no prediction
            new = self.critic.verify(agent, rollout, frame)[None]
            earlier = new[:0] if self.verified is None else self.verified
            self.verified = torch.cat((earlier, new))[-VERIFIED:]
        if self.verified is None or len(self.verified) < LEAST_VERIFIED:
            return torch.ones((), device=rollout.reward.device)
        product, square = self.verified.unbind(-1)
        return risk.calibration_slope(product, square, errors=TRUSTED_ERRORS).float()

    def _mean_values(self, rollout: Rollout, agent: Agent, frame: Frame) -> Tensor:
        """Return what every action earned in its step and is expected to earn after it, [T, B, K].

        The step's own reward is that of the draw, without the critic: what it adds in noise the
        policy averages, what it adds in bias nothing would remove.
        """
        step = recorded(rollout).step
        following = self.critic.predict_following(agent, rollout, frame, REWARD)
        return step.reward + self.config.ppo.gamma * torch.where(step.terminated, 0.0, following)

    @staticmethod
    def _shortfall(rollout: Rollout, shortfall: Tensor) -> Tensor:
        """Return the mean shortfall that is expected where episodes begin; NaN if none does."""
        first = shortfall[rollout.length == 1]
        return first.mean() if len(first) else first.new_full((), torch.nan)

    def _predicted(self, shortfall: float) -> float:
        """Return the CVaR that belongs to an expected shortfall at the start of an episode."""
        below = shortfall + min(-self.level, 0.0)
        return self.level + below / self.config.risk.cvar_alpha

    def _move_share(self, tail: Tail) -> None:
        """Set the share of the risk advantage from the distance to the aim."""
        if self.config.risk.episode_limit is None or self.balance is None or self.scale is None:
            return
        gap = self.aim(tail) - tail.empirical
        relative = gap / self.unit(tail)
        square = self.balance.new_ones(()) if self.mixed is None else self.mixed
        with waiting_allowed():
            *rates, mixed = torch.cat((self.balance.double(), square.double()[None])).tolist()
        mean_rate, risk_rate = torch.tensor(rates, dtype=torch.float64)
        # the mixture is divided by its own scale, so a step is longer by that
        step = 1.0 if self.mixed is None else max(math.sqrt(mixed), LEAST_MIXED)
        wanted = GAIN * gap * step + self.integral * risk_rate
        most = SLOPE * abs(relative) + abs(self.integral)
        share = float(risk.mixing_share(wanted, mean_rate, risk_rate, most_change=most))
        if 0.0 < share < 1.0 or (share == 0.0) == (gap > 0.0):  # no windup at either end
            self.integral += INTEGRAL_STEP * min(max(relative, -0.5), 0.5)
            self.integral = min(max(self.integral, -MOST_INTEGRAL), MOST_INTEGRAL)
        if gap > 0.0 and self._needs_skill(tail):
            share = 1.0
        self.share = min(share, MOST_SHARE)
        self.bound_updates = self.bound_updates + 1 if self.share == MOST_SHARE else 0

    def _needs_skill(self, tail: Tail) -> bool:
        """Whether the limit is broken by a policy more cautious than every held action.

        Nothing sure keeps it then, and a balance of both advantages would stay below it: the gain
        that a broken limit is worth pulls as long as it has a share.
        """
        limit, best = self.config.risk.cvar_limit, self._best_held()
        return limit is not None and best is not None and best < tail.empirical < limit

    def is_infeasible(self, tail: Tail) -> bool:
        """Whether the limit is out of reach: the most cautious policies there are break it.

        Measured are actions that are held throughout, over all remembered draws, and the agent
        after some updates with the largest share of the risk advantage; its CVaR must be below the
        limit by more than its interval.
        """
        config = self.config.risk
        if config.cvar_limit is None or self.bound_updates < config.cvar_infeasible_updates:
            return False
        if tail.empirical + NORMAL_95 * tail.error >= config.cvar_limit:
            return False
        best = self._best_held()
        return best is not None and best < config.cvar_limit

    def _best_held(self) -> float | None:
        return self.draws.best_held(self.config.risk.cvar_alpha)

    def unit(self, tail: Tail) -> float:
        """Return the size that distances to the limit are measured in."""
        limit = abs(self.config.risk.cvar_limit or 0.0)
        return max(limit, self.config.risk.cvar_alpha * tail.spread) or 1.0

    def aim(self, tail: Tail) -> float:
        """Return the CVaR that is aimed at, inside the limit."""
        config = self.config.risk
        limit = config.cvar_limit or 0.0
        margin = self._errors * config.cvar_margin
        return aim_inside(limit, tail, self.unit(tail), margin=margin)

    def _report(self, estimates: Estimates, tail: Tail, mix: Mix) -> RiskReport:
        limit = self.config.risk.cvar_limit
        return RiskReport(
            advantage=estimates.raw_advantage,
            risk=mix.taken,
            tail=tail,
            average=tail.empirical,
            predicted=mix.predicted,
            realised=tail.empirical,
            unit=self.unit(tail),
            gap=math.nan if limit is None else limit - tail.empirical,
            multiplier=self.multiplier,
            weight=0.0,
            share=0.0,
            legacy=0.0,
            term=mix.term,
            source=SOURCES[1] if tail.is_ready else SOURCES[0],
            is_infeasible=self.is_infeasible(tail),
            factor=self.share,
            options=mix.options,
            risk_options=mix.risk_options,
            level=self.level,
            loss=mix.loss,
            trust=mix.trust,
            floor=mix.floor,
            aim=math.nan if limit is None else self.aim(tail),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "critic": self.critic.state_dict(),
            "draws": self.draws.state_dict(),
            **{name: getattr(self, name) for name in _CARRIED},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Raises:
            ArtifactError: if a tensor or number is none of such a control.
            KeyError: if a part is missing.
        """
        device = self.task.device
        self._check(state)
        self.critic.load_state_dict(state["critic"])
        self.draws.load_state_dict(state["draws"], device)
        for name in _CARRIED:
            value = state[name]
            setattr(self, name, value.to(device) if isinstance(value, Tensor) else value)

    def _check(self, state: dict[str, Any]) -> None:
        """Refuse what the next update could not use."""
        for name in ("updates", "bound_updates"):
            check_number(state[name], int, name=name, low=0)
        check_number(state["level"], float, name="level")
        check_number(state["share"], float, name="share", low=0.0, below=1.0)
        bound = MOST_INTEGRAL * (1.0 + 1e-9)
        check_number(state["integral"], float, name="integral", low=-bound, below=bound)
        for name, shape in (("scale", (2,)), ("mixed", ()), ("balance", (2,))):
            if state[name] is not None:
                check_tensor(state[name], Fit(shape, "float"), name=name)
        if state["verified"] is not None:
            rows = min(len(state["verified"]), VERIFIED)
            check_tensor(state["verified"], Fit((rows, 2), "double"), name="verified")
        self.draws.check(state["draws"], self.task, len(self._held_actions))


_CARRIED = (
    *("updates", "level", "share", "integral", "bound_updates"),
    *("scale", "mixed", "balance", "verified"),
)
"""What the next update depends on beside both memories and the critic."""


def _mean_square(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean square over rows and actions."""
    return (x.square() * weight).sum() / (weight.sum() * x.shape[-1])


def _followed(before: Tensor | None, new: Tensor, beta: float, updates: int) -> Tensor:
    """Return the moving average; in the first updates the plain mean."""
    if before is None:
        return new
    weight = min(beta, updates / (updates + 1.0))
    return weight * before + (1.0 - weight) * new
