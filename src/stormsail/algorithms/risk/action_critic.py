"""The critic of all actions: trained from a memory of steps, asked for the advantages of a rollout.

The target of action a comes from the same draw for every action, because the task says what each
would have made of it:

    y(a) = reward(a) + gamma * V_target(s'(a)),    V <- sum_a pi(a | s) y(a)

with the policy of now, so that old steps need no correction (expected SARSA: van Seijen et al.
2009, Eq. 5). One reward is the task's own, with the run's discount; the other is what a step adds
to the shortfall of the episode, without discount, and for it the time limit is an end. What actions
add to the shortfall, y(a) less its mean over actions, is learned by a network of its own.

Values of one step ahead move by a step of the episode in each round of learning, too slowly for a
week of hours. Where all actions are valued, values are therefore also learned from what followed
the states of the newest rollout: lambda-returns of the task's own reward, and the shortfall by the
end of the episode. Its noise must not reach the difference between actions, so the value of a
shortfall does not see the account, and learns how it depends on the return so far from shifted
returns (`SHIFT`).

Where rewards depend on the account, such as stakes that are shares of a wealth, a shifted return is
not followed by the same rewards, and y(a) asks for the value of an account that nothing was learned
of. There, what actions add is learned from `branches` alone: episodes that were played to their end
after every action, on the same draws.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from stormsail.algorithms.risk.branches import Branches
from stormsail.algorithms.risk.lessons import (
    BATCH,
    Branched,
    Followed,
    Lesson,
    Lessons,
    Targets,
    draw_lessons,
    split,
)
from stormsail.algorithms.risk.rows import ROWS, RowMemory, Rows, scaled_account
from stormsail.algorithms.risk.saved import Fit, check_number, check_tensors, like, row_fits
from stormsail.algorithms.update.graphs import Recorder
from stormsail.algorithms.update.rollout import Options, Rollout
from stormsail.core.generators import Generators
from stormsail.core.task import DiscreteActions
from stormsail.functional import returns, risk
from stormsail.modules.action_values import RETURN_INPUTS, ActionValues, about_mean, return_inputs
from stormsail.modules.actions import grid_log_prob
from stormsail.modules.agent import Agent

AVERAGED = 0.98
"""Weight of the past in the averaged weights, which all values are asked of, for each step of the
optimizer: single draws of rare events move the weights themselves to and fro."""

DECAY = 0.3
"""Decay of the weights, in shares of the learning rate: a network that is free to remembers the
few rare events by whatever else was seen with them."""

SIZES = (64, 64)
"""Hidden layers."""

RATE = 2e-3
"""Learning rate of AdamW."""

SAMPLED_ROWS = (1024, 2048)
"""Remembered steps that are looked at in one update: as many as the rollout has, within these."""

UNIT_STEP = 0.1
"""Share by which the unit of the outputs follows the targets with every update."""

LEAST_UNIT = 1e-8

LEAST_RATE = 0.1
"""Least share of the first learning rate: the policy that it follows moves to the last update."""

REWARD, SHORTFALL = 0, 1
"""Places of the task's own reward and of the shortfall among the rewards."""

SHIFT = 0.5
"""Spread of what is added to the returns so far of followed states, in spreads of returns. Whatever
the episode earned before, the same prices follow, so one episode says what the shortfall would have
been from any return so far: how its value depends on that is learned without the noise between
episodes."""

TRACE = 0.97
"""Lambda of the returns by which the task's own reward is followed."""

MOST_RATIO = 2.0
"""Largest ratio of probabilities by which a step of an earlier policy counts."""


_follow = get_ema_multi_avg_fn(AVERAGED)


class Frame(NamedTuple):
    """Numbers that the inputs are relative to."""

    level: Tensor
    """nu, in reward units."""
    spread: Tensor
    """Standard deviation of returns."""
    horizon: float
    """Steps of an episode."""


def frame_of(level: float, spread: float, horizon: int | None, device: torch.device) -> Frame:
    """Return these numbers on a device; without a spread or a horizon the unit is 1."""
    numbers = torch.tensor([level, spread or 1.0], dtype=torch.float32).to(device)
    return Frame(numbers[0], numbers[1], float(horizon or 1))


def first_weights(generators: Generators) -> torch.Generator:
    """Return what draws the first weights, on the CPU: they are the same on every device."""
    return Generators(generators.seed).stream("risk.weights")


class ActionCritic:
    """Values of all actions, the averaged network that is asked for them, optimizer and memory.

    Args:
        agent: whose policy is evaluated.
        actions: K; 1 for a task that says only what the taken action made. The values are then
            those of the state, and steps of earlier policies count with the ratio of probabilities.
        gamma: discount of the task's own reward.
        rollouts: how many rollouts are remembered.
        generator: of the first weights, on the CPU.
        captured: whether the steps of a round of learning become a CUDA graph.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        actions: int,
        gamma: float,
        rollouts: int,
        generator: torch.Generator,
        captured: bool = False,
    ) -> None:
        width = agent.network.trunk.memory.width + len(agent.spec.observation_names) + RETURN_INPUTS
        self.gamma = gamma
        self.columns = len(agent.spec.observation_names)
        self.values = ActionValues(
            width,
            rewards=2,
            actions=actions,
            sizes=SIZES,
            generator=generator,
            hidden=self._account(agent) if actions > 1 else (),
        )
        device = agent.network.actor_last.weight.device
        self.values.to(device)
        self.averaged = copy.deepcopy(self.values).requires_grad_(requires_grad=False)
        self._recorder = Recorder(captured=captured)
        # a graph reads the rate where it is
        self._rate = torch.tensor(RATE, device=device) if captured else None
        self.optimizer = torch.optim.AdamW(
            self.values.parameters(), lr=RATE, weight_decay=DECAY, fused=True, capturable=captured
        )
        self.memory = RowMemory(rollouts)
        account = len(agent.spec.after_memory) if len(agent.network.grid) else 0
        self._row = row_fits(agent, actions, account)
        self.updates = 0

    @staticmethod
    def _account(agent: Agent) -> list[int]:
        """Return the input columns of the account, which the value of a shortfall does not see.

        Of two positions the one in which more was lost lately would seem the worse one to be in,
        and such noise would go straight into the difference between actions. What a position
        changes, the costs of leaving it, is small beside the shortfall.
        """
        names, width = agent.spec.observation_names, agent.network.trunk.memory.width
        return [width + names.index(name) for name in agent.spec.after_memory]

    def learn(
        self,
        agent: Agent,
        frame: Frame,
        generator: torch.Generator,
        *,
        rollout: Rollout | None = None,
        branches: Branches | None = None,
        rate: float = 1.0,
    ) -> Tensor:
        """Train on remembered steps; return the mean squared error, relative to the units.

        Args:
            agent: whose policy is evaluated.
            frame: of the inputs.
            generator: of the draw of steps.
            rollout: the newest, with `options`; values are also learned from what followed its
                states. None learns from one step ahead alone.
            branches: of that rollout; what actions add is then learned from them alone.
            rate: learning rate over the first one.

        Raises:
            LookupError: if there are branches and no rollout.
        """
        least, most = SAMPLED_ROWS
        rows = self.memory.sample(min(max(self.memory.newest, least), most), generator)
        targets = self._targets(agent, rows, frame)
        self._set_unit(targets)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * rate if self._rate is None else self._rate.fill_(RATE * rate)
        followed = None if rollout is None else self._followed(rollout, frame, generator)
        branched = None if branches is None else self._branched(rollout, branches, frame)
        lessons = draw_lessons(targets, followed, branched, generator)
        error = self._recorder("the steps of the risk critic", self._fit, lessons, writes=self._own)
        self.updates += 1
        return error

    def _own(self) -> Iterator[Tensor]:
        """Yield all tensors that a step changes."""
        yield from self.values.parameters()
        yield from self.averaged.parameters()
        for state in self.optimizer.state.values():
            yield from state.values()

    def _fit(self, lessons: Lessons) -> Tensor:
        """Take all steps of a round; return their mean error."""
        errors = []
        epochs = zip(lessons.orders, lessons.followed, lessons.branched, strict=True)
        for order, followed, branched in epochs:
            lesson = _lesson(lessons.targets, self._wanted(lessons.targets))
            chosen = order.split(BATCH)
            states, ends = split(followed, len(chosen)), split(branched, len(chosen))
            errors += [
                self._step(Lesson(*(column[part] for column in lesson)), state, end)
                for part, state, end in zip(chosen, states, ends, strict=True)
            ]
        return torch.stack(errors).mean()

    @torch.no_grad()
    def _followed(self, rollout: Rollout, frame: Frame, generator: torch.Generator) -> Followed:
        """Return the states of a rollout with what followed them: rewards, and the shortfall.

        With C' the return so far, shifted, and R what the rest of the episode earned:
        min(C' + R - nu, 0) - min(C' - nu, 0), and where the episode goes on beyond the rollout the
        value of its last state at C' + R.
        """
        options = recorded(rollout)
        ends = rollout.terminated | rollout.truncated | (rollout.length >= frame.horizon)
        nothing, never = torch.zeros_like(rollout.reward), torch.zeros_like(ends)
        rest = returns.gae(rollout.reward, nothing, nothing, ends, never, gamma=1.0, lam=1.0)
        goes_on = ends.flip(0).cumsum(0).flip(0) == 0
        shift = torch.randn(rest.shape, generator=generator, device=generator.device)
        before = rollout.return_so_far.to(rest.dtype) + SHIFT * frame.spread * shift.to(rest)
        elapsed = (rollout.length - 1).float()
        own = self.inputs(options.features[:-1], options.seen[:-1], before, elapsed, frame)
        # the last state of each environment, with what each of its rows would have earned by then
        last = self.inputs(
            options.features[-1].expand_as(options.features[:-1]),
            options.seen[-1].expand_as(options.seen[:-1]),
            before + rest,
            rollout.length[-1].float().expand_as(elapsed),
            frame,
        )
        bootstrap = torch.where(goes_on, self.averaged.value(last, SHORTFALL), 0.0)
        wanted = risk.shortfall_increment(rest, before, level=frame.level) + bootstrap
        wanted = torch.minimum(wanted, -(before - frame.level).clamp(max=0.0))
        wanted = torch.stack((self._traced(rollout, frame), wanted), -1)
        return Followed(own.flatten(0, 1), wanted.flatten(0, 1), rollout.weight.flatten())

    @torch.no_grad()
    def _traced(self, rollout: Rollout, frame: Frame) -> Tensor:
        """Return the lambda-returns of the task's own reward, [T, B]."""
        options, so_far = recorded(rollout), rollout.return_so_far
        elapsed = (rollout.length - 1).float()
        own = self.inputs(options.features[:-1], options.seen[:-1], so_far, elapsed, frame)
        after = self.inputs(
            options.features[1:], options.seen[1:], so_far + rollout.reward, elapsed + 1.0, frame
        )
        value = self.averaged.value(own, REWARD)
        following = self.averaged.value(after, REWARD)
        return value + returns.gae(
            rollout.reward,
            value,
            following,
            rollout.terminated,
            rollout.truncated,
            gamma=self.gamma,
            lam=TRACE,
        )

    @torch.no_grad()
    def _branched(self, rollout: Rollout | None, branches: Branches, frame: Frame) -> Branched:
        """Return states with what every action added: min(G(a) - nu, 0), about its mean."""
        if rollout is None:
            raise LookupError("branches without their rollout have no states")
        options, places = recorded(rollout), branches.places
        own = self.inputs(
            options.features[:-1].flatten(0, 1)[places],
            options.seen[:-1].flatten(0, 1)[places],
            rollout.return_so_far.flatten()[places],
            (rollout.length - 1).float().flatten()[places],
            frame,
        )
        short = (branches.total - frame.level.double()).clamp(max=0.0)
        return Branched(own, about_mean(short).to(own.dtype))

    @torch.no_grad()
    def _wanted(self, targets: Targets) -> Tensor:
        """Return what each action is worth by the averaged values, [n, K, R]."""
        wanted: Tensor = targets.reward + targets.discount * self.averaged.values(targets.following)
        return torch.minimum(wanted, targets.ceiling)

    def _step(
        self, lesson: Lesson, followed: Followed | None, branched: Branched | None = None
    ) -> Tensor:
        unit = self.values.unit
        value, added = self.values(lesson.own)
        errors = ((value - lesson.value) / unit[:-1]).square().sum(-1)
        if branched is None:
            errors = errors + ((added - lesson.added) / unit[-1]).square().mean(-1)
        loss: Tensor = (lesson.weight * errors).mean()
        if branched is not None:
            error = (self.values.added(branched.own) - branched.added) / unit[-1]
            loss = loss + error.square().mean()
        if followed is not None:
            error = (self.values.values(followed.own) - followed.wanted) / unit[:-1]
            loss = loss + (followed.weight * error.square().sum(-1)).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            _follow(list(self.averaged.parameters()), list(self.values.parameters()), None)
        return loss.detach()

    @torch.no_grad()
    def _targets(self, agent: Agent, rows: Rows, frame: Frame) -> Targets:
        count, actions = rows.reward.shape
        reset = torch.zeros(2, count, dtype=torch.bool, device=rows.reward.device)
        seen = rows.seen.transpose(0, 1)
        features, _ = agent.network.features(seen, rows.memory, reset)
        own = self.inputs(features[0], seen[0], rows.return_so_far, rows.elapsed, frame)
        following_features = features[1][:, None].expand(-1, actions, -1)
        following_seen = _with_account(agent, seen[1], rows.account)
        elapsed = (rows.elapsed + 1.0)[:, None].expand(-1, actions)
        before = rows.return_so_far[:, None].expand_as(rows.reward)
        shortfall = risk.shortfall_increment(rows.reward, before, level=frame.level)
        weight = rows.weight
        if actions == 1:
            weight = weight * self._ratio(agent, features[0], seen[0], rows)
        goes_on = ~rows.terminated
        before_end = goes_on & ~rows.last[:, None]
        return Targets(
            own=own,
            following=self.inputs(
                following_features, following_seen, before + rows.reward, elapsed, frame
            ),
            probability=_probability(agent, features[0], seen[0], actions),
            reward=torch.stack((rows.reward, shortfall), -1),
            discount=torch.stack((self.gamma * goes_on, before_end.float()), -1),
            ceiling=torch.stack(
                (
                    torch.full_like(rows.return_so_far, torch.inf),
                    -(rows.return_so_far - frame.level).clamp(max=0.0),
                ),
                -1,
            )[:, None],
            weight=weight,
        )

    @staticmethod
    def _ratio(agent: Agent, features: Tensor, seen: Tensor, rows: Rows) -> Tensor:
        """Return by how much likelier the taken action is now, at most `MOST_RATIO`, [n]."""
        network = agent.network
        parameters = network.actor(features, network.account(seen))
        whole = isinstance(agent.spec.actions.actions(), DiscreteActions)
        raw = rows.raw_action[:, 0] if whole else rows.raw_action
        log_prob = network.head.log_prob(parameters, raw)
        return (log_prob - rows.log_prob).exp().clamp(max=MOST_RATIO)

    def inputs(
        self, features: Tensor, seen: Tensor, return_so_far: Tensor, elapsed: Tensor, frame: Frame
    ) -> Tensor:
        """Return the input columns, [*b, X]."""
        left = 1.0 - elapsed / frame.horizon
        more = return_inputs(return_so_far.float(), frame.level, frame.spread, left)
        return torch.cat((features, self.named(seen), more), -1)

    def named(self, seen: Tensor) -> Tensor:
        """Return the columns of an observation that are no pixels."""
        return seen[..., : self.columns]

    @torch.no_grad()
    def predict(self, rollout: Rollout, frame: Frame) -> tuple[Tensor, Tensor]:
        """Return of each row of a rollout the value of the shortfall, and what actions add to it.

        [T, B] and, about their mean, [T, B, K].
        """
        options = recorded(rollout)
        elapsed = (rollout.length - 1).float()
        x = self.inputs(
            options.features[:-1], options.seen[:-1], rollout.return_so_far, elapsed, frame
        )
        return self.averaged.value(x, SHORTFALL), self.averaged.added(x)

    @torch.no_grad()
    def predict_following(
        self, agent: Agent, rollout: Rollout, frame: Frame, reward: int
    ) -> Tensor:
        """Return the value of the state after every action for one of the rewards, [T, B, K]."""
        options = recorded(rollout)
        actions = options.step.reward.shape[-1]
        features = options.features[1:, :, None].expand(-1, -1, actions, -1)
        account = scaled_account(agent, options.step.account)
        seen = _with_account(agent, options.seen[1:], account)
        after = rollout.return_so_far[..., None] + options.step.reward
        elapsed = rollout.length.float()[..., None].expand_as(after)
        return self.averaged.value(self.inputs(features, seen, after, elapsed, frame), reward)

    @torch.no_grad()
    def verify(self, agent: Agent, rollout: Rollout, frame: Frame) -> Tensor:
        """Compare what actions add to the shortfall with a rollout that was not learned from yet.

        Returns:
            Means of prediction times outcome and of the squared prediction, float64 [2]: about
            their means over states, with the one-step targets of all actions as outcomes.
        """
        step, weight = recorded(rollout).step, rollout.weight[..., None].double()
        _, predicted = self.predict(rollout, frame)
        before = rollout.return_so_far[..., None].expand_as(step.reward)
        last = step.terminated | (rollout.length >= frame.horizon)[..., None]
        following = self.predict_following(agent, rollout, frame, SHORTFALL)
        outcome = risk.shortfall_increment(step.reward, before, level=frame.level)
        outcome = about_mean(outcome + torch.where(last, 0.0, following))
        rows = weight.sum()
        predicted, outcome = (
            x.double() - (weight * x).sum((0, 1)) / rows for x in (predicted, outcome)
        )
        parts = (predicted * outcome, predicted.square())
        return torch.stack([(weight * part).sum() / rows for part in parts])

    @torch.no_grad()
    def _set_unit(self, targets: Targets) -> None:
        """Let the units of each output follow the size of its targets."""
        value = self.averaged.values(targets.own)[:, None]  # [n, 1, R]
        whole = torch.maximum(targets.reward.square(), value.square()).mean(1)
        added = about_mean(self._wanted(targets)[..., SHORTFALL]).square().mean(-1, keepdim=True)
        size = torch.cat((whole, added), -1)  # [n, R + 1]
        size = (targets.weight[:, None] * size).mean(0).sqrt().clamp(min=LEAST_UNIT)
        if self.updates == 0:  # what the first weights say is no prediction, in no unit
            self.values.unit.copy_(size)
            self.averaged.unit.copy_(size)
            return
        unit = self.values.unit + UNIT_STEP * (size - self.values.unit)
        for network in (self.values, self.averaged):
            network.rescale(unit)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "values": dict(self.values.state_dict()),
            "averaged": dict(self.averaged.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "memory": self.memory.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state, on the device of the values.

        Raises:
            ArtifactError: if a tensor is none of such a critic.
            KeyError: if a part is missing.
        """
        for name in ("values", "averaged"):
            check_tensors(state[name], like(self.values.state_dict()), part=f"critic/{name}")
        self._check_optimizer(state["optimizer"])
        check_number(state["updates"], int, name="critic/updates", low=0)
        self._check_memory(state["memory"])
        self.values.load_state_dict(state["values"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory.load_state_dict(state["memory"], self.values.unit.device)
        self.updates = state["updates"]

    def _check_optimizer(self, saved: dict[str, Any]) -> None:
        """Refuse moments of other weights."""
        for number, weight in enumerate(self.values.parameters()):
            entry = saved["state"].get(number)
            if entry is not None:
                wanted = {"exp_avg": weight, "exp_avg_sq": weight, "step": weight.new_zeros(())}
                check_tensors(entry, like(wanted), part=f"critic/optimizer/{number}")

    def _check_memory(self, saved: dict[str, Any]) -> None:
        """Refuse steps of another task or agent."""
        for name in ("added", "newest"):
            check_number(saved[name], int, name=f"critic/memory/{name}", low=0)
        if saved["table"] is not None:
            rows = min(saved["newest"], ROWS)
            wanted = {
                name: Fit((self.memory.rollouts, rows, *fit.shape), fit.kind)
                for name, fit in self._row.items()
            }
            check_tensors(saved["table"], wanted, part="critic/memory")


def _lesson(targets: Targets, wanted: Tensor) -> Lesson:
    """Return what actions of the given worth, [n, K, R], teach about the states before them."""
    value = (targets.probability[..., None] * wanted).sum(1)
    return Lesson(targets.own, value, about_mean(wanted[..., SHORTFALL]), targets.weight)


def recorded(rollout: Rollout) -> Options:
    """Return what a rollout has recorded of its actions."""
    if rollout.options is None:
        raise LookupError("a rollout without options has no values of all actions")
    return rollout.options


def _with_account(agent: Agent, seen: Tensor, account: Tensor) -> Tensor:
    """Return observations with the account of each action in place of the real one, [*b, K, F].

    Where none is recorded the real one stays: it is that of the taken action.
    """
    names = agent.spec.observation_names
    columns = [names.index(name) for name in agent.spec.after_memory]
    replaced = seen[..., None, :].expand(*seen.shape[:-1], account.shape[-2], -1).clone()
    if account.shape[-1]:
        for place, column in enumerate(columns):  # an index would have to be copied to the device
            replaced[..., column] = account[..., place]
    return replaced


def _probability(agent: Agent, features: Tensor, seen: Tensor, actions: int) -> Tensor:
    """Return the probability of every action, [*b, K]; of the state alone 1."""
    network = agent.network
    if actions == 1:
        return torch.ones_like(features[..., :1])
    parameters = network.actor(features, network.account(seen))
    return grid_log_prob(network.head, parameters, network.grid).exp()
