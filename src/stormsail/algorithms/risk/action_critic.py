"""The critic of all actions: trained from a memory of steps, asked for the advantages of a rollout.

Its target for action a is the expected SARSA one (van Seijen et al. 2009, Eq. 5) of every action at
once, because the task says what each would have made of the same draw:

    y(a) = reward(a) + gamma * sum_b pi(b | s'(a)) Q_target(s'(a), b)

with the policy of now, so that old steps need no correction. One reward is the task's own, with the
run's discount; the other is what a step adds to the shortfall of the episode, without discount, and
for it the time limit is an end.
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from stormsail.algorithms.risk.rows import ROWS, RowMemory, Rows, scaled_account
from stormsail.algorithms.risk.saved import Fit, check_number, check_tensors, like, row_fits
from stormsail.algorithms.update.rollout import Options, Rollout
from stormsail.core.task import DiscreteActions
from stormsail.functional import risk
from stormsail.modules.action_values import RETURN_INPUTS, ActionValues, parts, return_inputs
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

BATCH = 256
"""Of them in one step of the optimizer."""

EPOCHS = 4
"""How often each is used."""

UNIT_STEP = 0.1
"""Share by which the unit of the outputs follows the targets with every update."""

LEAST_UNIT = 1e-8

LEAST_RATE = 0.1
"""Least share of the first learning rate: the policy that it follows moves to the last update."""

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


class Targets(NamedTuple):
    """Inputs and parts of the targets for n steps; nothing of it changes while it is learned."""

    own: Tensor
    """Inputs before the step, [n, X]."""
    following: Tensor
    """Inputs after each action, [n, K, X]."""
    probability: Tensor
    """Of every action in the state after each action, [n, K, K]."""
    reward: Tensor
    """Of both kinds, [n, R, K]."""
    discount: Tensor
    """Of what follows, 0 where nothing does, [n, R, K]."""
    ceiling: Tensor
    """Highest possible value, [n, R, 1]."""
    weight: Tensor
    """[n]."""


class ActionCritic:
    """Values of all actions, the averaged network that is asked for them, optimizer and memory.

    Args:
        agent: whose policy is evaluated.
        actions: K; 1 for a task that says only what the taken action made. The values are then
            those of the state, and steps of earlier policies count with the ratio of probabilities.
        gamma: discount of the task's own reward.
        rollouts: how many rollouts are remembered.
        generator: of the first weights.
    """

    def __init__(
        self, agent: Agent, *, actions: int, gamma: float, rollouts: int, generator: torch.Generator
    ) -> None:
        width = agent.network.trunk.memory.width + len(agent.spec.observation_names) + RETURN_INPUTS
        self.gamma = gamma
        self.columns = len(agent.spec.observation_names)
        self.values = ActionValues(
            width, rewards=2, actions=actions, sizes=SIZES, generator=generator
        )
        self.values.to(agent.network.actor_last.weight.device)
        self.averaged = copy.deepcopy(self.values).requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.AdamW(
            self.values.parameters(), lr=RATE, weight_decay=DECAY, fused=True
        )
        self.memory = RowMemory(rollouts)
        account = len(agent.spec.after_memory) if len(agent.network.grid) else 0
        self._row = row_fits(agent, actions, account)
        self.updates = 0

    def learn(
        self, agent: Agent, frame: Frame, generator: torch.Generator, *, rate: float = 1.0
    ) -> Tensor:
        """Train on remembered steps; return the mean squared error, relative to the units."""
        least, most = SAMPLED_ROWS
        rows = self.memory.sample(min(max(self.memory.newest, least), most), generator)
        targets = self._targets(agent, rows, frame)
        self._set_unit(targets)
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * rate
        errors = []
        for _ in range(EPOCHS):
            wanted = self._wanted(targets)
            order = torch.randperm(len(wanted), generator=generator, device=generator.device)
            errors += [
                self._step(targets.own[chosen], wanted[chosen], targets.weight[chosen])
                for chosen in order.to(wanted.device).split(BATCH)
            ]
        self.updates += 1
        return torch.stack(errors).mean()

    @torch.no_grad()
    def _wanted(self, targets: Targets) -> Tensor:
        """Return the targets by the averaged values, [n, R, K]."""
        coming = self.averaged(targets.following)  # [n, K, R, K]
        value = (coming * targets.probability[:, :, None]).sum(-1).transpose(1, 2)
        wanted: Tensor = targets.reward + targets.discount * value
        return torch.minimum(wanted, targets.ceiling)

    def _step(self, own: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
        mean, added = parts(self.values(own) - wanted)  # [n, R, 1], [n, R, K]
        unit = self.values.unit
        errors = (mean / unit[:, :1]).square().mean(-1) + (added / unit[:, 1:]).square().mean(-1)
        loss: Tensor = (weight * errors.mean(-1)).mean()
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
            probability=_probability(agent, following_features, following_seen),
            reward=torch.stack((rows.reward, shortfall), 1),
            discount=torch.stack((self.gamma * goes_on, before_end.float()), 1),
            ceiling=torch.stack(
                (
                    torch.full_like(rows.return_so_far, torch.inf),
                    -(rows.return_so_far - frame.level).clamp(max=0.0),
                ),
                1,
            )[..., None],
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
    def predict(self, rollout: Rollout, frame: Frame) -> Tensor:
        """Return both values of every action in each row of a rollout, [T, B, R, K]."""
        options = recorded(rollout)
        elapsed = (rollout.length - 1).float()
        x = self.inputs(
            options.features[:-1], options.seen[:-1], rollout.return_so_far, elapsed, frame
        )
        out: Tensor = self.averaged(x)
        return out

    @torch.no_grad()
    def predict_following(self, agent: Agent, rollout: Rollout, frame: Frame) -> Tensor:
        """Return both values of the state after every action, [T, B, R, K]."""
        options = recorded(rollout)
        actions = options.step.reward.shape[-1]
        features = options.features[1:, :, None].expand(-1, -1, actions, -1)
        account = scaled_account(agent, options.step.account)
        seen = _with_account(agent, options.seen[1:], account)
        after = rollout.return_so_far[..., None] + options.step.reward
        elapsed = rollout.length.float()[..., None].expand_as(after)
        coming = self.averaged(self.inputs(features, seen, after, elapsed, frame))  # [T,B,K,R,K]
        probability = _probability(agent, features, seen)
        expected: Tensor = (coming * probability[..., None, :]).sum(-1)
        return expected.transpose(-1, -2)

    @torch.no_grad()
    def _set_unit(self, targets: Targets) -> None:
        """Let the units of each output follow the size of its targets."""
        value = self.averaged(targets.own)  # [n, R, K]
        whole = torch.maximum(targets.reward.square(), value.square())
        added = parts(self._wanted(targets))[1].square()
        size = torch.stack((whole.mean(-1), added.mean(-1)), -1)  # [n, R, 2]
        size = (targets.weight[:, None, None] * size).mean(0).sqrt().clamp(min=LEAST_UNIT)
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
    if columns and account.shape[-1]:
        replaced[..., columns] = account
    return replaced


def _probability(agent: Agent, features: Tensor, seen: Tensor) -> Tensor:
    """Return the probability of every action, [*b, K]; of the state alone 1."""
    network = agent.network
    if features.shape[-2] == 1:
        return torch.ones_like(features[..., :1])
    parameters = network.actor(features, network.account(seen))
    return grid_log_prob(network.head, parameters, network.grid).exp()
