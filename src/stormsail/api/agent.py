"""`ss.Agent`: an agent that takes NumPy or tensors, one observation or many, and evaluates itself.

It decides through `modules.Agent.decide` like everything else: arrays are turned into tensors
before it and back after it, and nothing else is added.
"""

from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stormsail.algorithms.config.run import EvaluatedPolicy
from stormsail.algorithms.run.evaluate import MAX_STEPS, Evaluation, evaluate
from stormsail.algorithms.run.start_checks import check_device
from stormsail.api.agent_folders import agent_folder
from stormsail.api.environments import Judged, trials
from stormsail.api.settings import is_whole
from stormsail.core.arguments import check_flag, check_type
from stormsail.core.errors import ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.core.files.paths import given_path
from stormsail.core.generators import Generators
from stormsail.core.memory import check_memory
from stormsail.core.task import ContinuousActions, DiscreteActions, close
from stormsail.modules import Agent as BaseAgent
from stormsail.modules import Decision

Array: TypeAlias = NDArray[Any]

_OF_THE_STEP_BEFORE = "Pass `decision.memory` of the step before, or nothing in the first."


class ArrayDecision(NamedTuple):
    """A decision as arrays, [B, ...]; without B where one observation was given."""

    action: Array
    """For the environment."""
    raw_action: Array
    """The same before squashing."""
    log_prob: Array
    """Log probability of the action."""
    parameters: Array
    """Of the distribution it was drawn from, [B, D]."""
    value: Array
    """Expected return in reward units."""
    distribution: Array
    """Quantiles at `Agent.levels`, in reward units, or probabilities of `Agent.atoms`, [B, W]."""
    predicted: Array
    """Output of each critic, normalised, [B, C, W]."""
    memory: Array
    """To be passed to the next call, [B, L, P, H]."""
    features: Array
    """Output of the actor's memory, [B, H]."""


class Agent(BaseAgent):
    """A trained agent: observation in, decision out.

    `Agent.load("runs/x")` reads the best agent of a run, `Agent.load("runs/x/best")` the same
    folder by its own name.

    Attributes:
        folder: that it was read from; None where it was not.
    """

    folder: Path | None = None

    @classmethod
    def load(cls, path: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """Read an agent, the best one of a run, or that of the best member of a population.

        Args:
            path: folder of the agent, the run or the population.
            device: where its tensors are to live.

        Raises:
            ArtifactError: if there is none yet, or its file is damaged or something else.
            ArgumentError: if `path` is no path, or `device` no device.
            ConfigError: if this machine has no such device.
        """
        folder = agent_folder(given_path(path, name="path"))
        _check_device(device)
        agent = super().load(folder, device=device)
        agent.folder = folder
        return agent

    @classmethod
    def of(cls, agent: BaseAgent) -> Self:
        """Return a copy of any agent as one of these."""
        if isinstance(agent, cls):
            return agent
        own = cls(agent.spec, torch.Generator(), binding=agent.binding.values)
        own.to(next(agent.parameters()).device).load_state_dict(agent.state_dict())
        own.lineage, own.judged_policy = agent.lineage, agent.judged_policy
        return own

    @overload
    def decide(
        self,
        observation: Tensor,
        memory: Tensor | None = None,
        *,
        deterministic: bool | None = None,
        generator: torch.Generator | None = None,
        mask: Tensor | None = None,
    ) -> Decision: ...

    @overload
    def decide(
        self,
        observation: Array,
        memory: Array | None = None,
        *,
        deterministic: bool | None = None,
        generator: torch.Generator | None = None,
        mask: Array | None = None,
    ) -> ArrayDecision: ...

    def decide(
        self,
        observation: Tensor | Array,
        memory: Tensor | Array | None = None,
        *,
        deterministic: bool | None = None,
        generator: torch.Generator | None = None,
        mask: Tensor | Array | None = None,
    ) -> Decision | ArrayDecision:
        """Return a decision for one observation, or for each of many.

        Args:
            observation: one, [F], or B of them, [B, F]; NumPy in, NumPy out, and tensors alike.
            memory: `decision.memory` of the step before; None begins an episode.
            deterministic: take the likeliest action instead of drawing one; None does what the
                agent was judged by (`judged_policy`).
            generator: needed to draw.
            mask: classes that are allowed, [D] or [B, D]; None allows all.

        Raises:
            ShapeError: if observation, memory or mask have another shape than the agent's.
            DtypeError: if observation, memory or mask hold something else than they must.
            RangeError: if an observation is not a number (NaN) somewhere, memory is not finite, or
                a mask allows nothing.
            ArgumentError: if `generator` or `deterministic` is something else.
            ConfigError: if it must draw and has no generator.
        """
        _check_drawing(deterministic, generator)
        greedy = self.judged_policy == "greedy" if deterministic is None else deterministic
        arrays = not isinstance(observation, Tensor)
        seen = self._numbers(observation)
        single = seen.ndim == 1
        if single:
            seen = seen[None]
        if seen.ndim != 2:
            raise ShapeError(
                wrong=f"an observation must be [{self.spec.columns}] or [B, {self.spec.columns}]",
                found=f"observation {tuple(seen.shape)}",
                remedy="Pass one observation, or one row for each environment.",
            )
        if seen.isnan().any():
            raise RangeError(
                wrong="an observation must hold numbers alone",
                found=f"{int(seen.isnan().sum())} that are not a number (NaN)",
                remedy="Fill what is missing as in the training, before the agent decides.",
            )
        decision = super().decide(
            seen,
            self._memory(memory, len(seen), single=single),
            deterministic=greedy,
            generator=generator,
            mask=None if mask is None else self._mask(mask, len(seen), single=single),
        )
        parts = decision if not single else Decision(*(part[0] for part in decision))
        if not arrays:
            return parts
        return ArrayDecision(*(part.cpu().numpy() for part in parts))

    def evaluate(
        self,
        env: Judged,
        episodes: int = 64,
        *,
        seed: int = 0,
        policy: EvaluatedPolicy | None = None,
        alpha: float = 0.05,
        max_steps: int = MAX_STEPS,
    ) -> Evaluation:
        """Play one episode in each of so many copies of an environment.

        Args:
            env: id, environment or factory of Gymnasium's, a market of `make_market`, or bars.
            episodes: number of copies.
            seed: of starts and of drawn actions; equal seeds give equal episodes.
            policy: `greedy`, `sampled` or `both`; None plays the one the agent was judged by.
            alpha: share of worst episodes in CVaR.
            max_steps: an episode is cut off after so many.

        Raises:
            RangeError: if `episodes` or `max_steps` is no whole number of at least 1, or `alpha` no
                share.
            ChoiceError: if there is no such policy.
            ShapeError: if the environment shows other columns than the agent was trained on.
            ArgumentError: if `env` is no environment.
            ConfigError: if there is no such environment, the agent was trained for other bars, or
                so many copies do not fit into memory.
            DataError: if bars do not suffice, or an observation does not fit its space.
        """
        self._check_evaluation(episodes, policy, alpha=alpha, max_steps=max_steps)
        played = trials(env, self, batch=episodes, device=self._device)
        generators = Generators(seed, str(self._device))
        try:
            return evaluate(
                played.task,
                self,
                generators.stream("validation"),
                policy=policy or self.judged_policy,
                actions=generators.stream("validation.actions"),
                max_steps=max_steps,
                log_returns=played.log_returns,
                alpha=alpha,
            )
        finally:
            close(played.task)

    def _check_evaluation(
        self, episodes: int, policy: str | None, *, alpha: float, max_steps: int
    ) -> None:
        """Refuse what `evaluate` cannot play.

        Raises:
            RangeError: if a number is none that it takes.
            ChoiceError: if there is no such policy.
            ConfigError: if so many episodes do not fit into memory.
        """
        counts = {"episodes": (episodes, 64), "max_steps": (max_steps, MAX_STEPS)}
        for name, (count, usual) in counts.items():
            if not is_whole(count) or count < 1:
                must = "at least 1" if is_whole(count) else "a whole number"
                raise RangeError(
                    wrong=f"`{name}` must be {must}",
                    found=repr(count),
                    remedy=f"Pass the number of {name.removeprefix('max_')}; {usual} is the "
                    "default.",
                )
        share: object = alpha
        if isinstance(share, bool) or not isinstance(share, float | int) or not 0.0 < share <= 1.0:
            raise RangeError(
                wrong="`alpha` must be a number above 0 and at most 1",
                found=repr(alpha),
                remedy="Pass the share of worst episodes; 0.05 is the default.",
            )
        policies, played = get_args(EvaluatedPolicy), [None, *get_args(EvaluatedPolicy)]
        if not any(
            policy is each or (isinstance(policy, str) and policy == each) for each in played
        ):
            raise ChoiceError(
                wrong=f"`policy` must be one of {', '.join(policies)}",
                found=repr(policy),
                remedy="Leave it out to play what the agent was judged by.",
            )
        if self._device.type == "cpu":
            own = next(self.parameters())
            numbers = self.spec.columns + self.initial_memory(1).numel()
            check_memory(
                own.element_size() * int(episodes) * numbers,
                what="an evaluation",
                found=f"`episodes` {episodes:,}",
                remedy="Lower `episodes`.",
            )

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _numbers(self, values: Tensor | Array, what: str = "an observation") -> Tensor:
        """Return an array as a tensor of the agent's type and place."""
        own = next(self.parameters())
        if isinstance(values, Tensor):
            if values.layout != torch.strided or values.is_meta:
                raise _no_numbers(what, f"a tensor of {values.layout} on {values.device}")
            if values.is_complex():
                raise _no_numbers(what, f"a tensor of {values.dtype}")
            return values.to(own.device, own.dtype)
        array = _array(values, what)
        if array.dtype.kind not in "biuf":
            raise _no_numbers(what, f"an array of {array.dtype}")
        return torch.as_tensor(array, dtype=own.dtype, device=own.device)

    def _memory(self, memory: Tensor | Array | None, batch: int, *, single: bool) -> Tensor:
        initial = self.initial_memory(batch)
        if memory is None:
            return initial
        given = self._numbers(memory, what="`memory`").to(initial.dtype)
        given = given[None] if single else given
        if given.shape != initial.shape:
            wanted = tuple(initial.shape[1:] if single else initial.shape)
            raise ShapeError(
                wrong=f"`memory` must have the shape {wanted}",
                found=f"memory {tuple(given.shape[1:] if single else given.shape)}",
                remedy=_OF_THE_STEP_BEFORE,
            )
        if not given.isfinite().all():
            raise RangeError(
                wrong="`memory` must hold finite numbers alone",
                found=f"{int((~given.isfinite()).sum())} that are not",
                remedy=_OF_THE_STEP_BEFORE,
            )
        return given

    def _mask(self, mask: Tensor | Array, batch: int, *, single: bool) -> Tensor:
        """Return which classes are allowed, bool [B, D], of a mask [D] or [B, D]."""
        values = mask.cpu().numpy() if isinstance(mask, Tensor) else _array(mask, "`mask`")
        if values.dtype.kind not in "biu":
            raise _no_numbers("`mask`", f"an array of {values.dtype}")
        given = torch.as_tensor(values != 0, device=self._device)
        counts = self._choices
        wanted = (sum(counts),) if single else (batch, sum(counts))
        if tuple(given.shape) != wanted:
            raise ShapeError(
                wrong=f"`mask` must have the shape {wanted}",
                found=f"mask {tuple(given.shape)}",
                remedy="Pass one entry for each class, and a row for each observation.",
            )
        rows = given[None] if single else given
        for choice in rows.split(counts, -1) if counts else ():
            if not choice.any(-1).all():
                raise RangeError(
                    wrong="`mask` must allow a class, and one of each choice",
                    found="a row in which all are forbidden",
                    remedy="Allow one, or ask for no decision there.",
                )
        return rows

    @property
    def _choices(self) -> tuple[int, ...]:
        """Classes of each choice; empty where actions are numbers."""
        actions = self.spec.actions.actions()
        if isinstance(actions, ContinuousActions):
            return ()
        return (actions.count,) if isinstance(actions, DiscreteActions) else actions.counts


def _check_device(device: object) -> None:
    """Refuse what is no device, or one that this machine does not have."""
    check_type(
        device,
        (str, torch.device),
        name="device",
        must="the name of a device, or a `torch.device`",
        remedy='Write `device="cpu"` or `device="cuda"`.',
    )
    check_device(str(device))


def _check_drawing(deterministic: object, generator: object) -> None:
    if deterministic is not None:
        check_flag(deterministic, name="deterministic")
    if generator is not None:
        check_type(
            generator,
            torch.Generator,
            name="generator",
            must="a `torch.Generator`",
            remedy="Write `generator=torch.Generator().manual_seed(0)`.",
        )


_REMEDIES = {
    "an observation": "Pass the columns of the observation; nested ones are taken by `evaluate`.",
    "`memory`": _OF_THE_STEP_BEFORE,
    "`mask`": "Pass True or False for each class.",
}


def _array(values: object, what: str) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise _no_numbers(what, "rows of different lengths") from error


def _no_numbers(what: str, found: str) -> DtypeError:
    each = "column" if what == "an observation" else "class" if what == "`mask`" else "place"
    return DtypeError(
        wrong=f"{what} must hold numbers, one for each {each}",
        found=found,
        remedy=_REMEDIES[what],
    )
