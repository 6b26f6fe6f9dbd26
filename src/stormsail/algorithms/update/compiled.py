"""Machine code for a CPU: a rollout's step, and a minibatch's losses with their gradient.

A step of 16 environments is some 190 operations on a few numbers each, and the losses of a
minibatch some 400: calling them takes longer than computing them. Both are compiled for their
shapes when they are met first. What changes from call to call is an argument, or memory that stays
in place (weights, statistics); random numbers are drawn before the call, so they are those of
eager calls. The memory's rows stay outside, since the way through torch's kernels depends on where
episodes begin; those of an LSTM are machine code of our own.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.graphs import COMPILER, epochs_obstacle, tell_eager
from stormsail.algorithms.update.losses import Batch, Sums, batch_sums
from stormsail.algorithms.update.rollout import EnvState, Played, played
from stormsail.algorithms.update.schedules import Scheduled, is_zero
from stormsail.core.errors import ConfigError
from stormsail.core.machine_code.cpp import compiled_library, has_compiler
from stormsail.core.machine_code.graph_compiler import TensorFunction, compile_in_place
from stormsail.core.task import Task, is_capturable
from stormsail.functional.kernels.layers.lstm_rows import SOURCE, LstmRows
from stormsail.modules.agent import Agent
from stormsail.optim.fused import whole_step
from stormsail.optim.pipeline import GradientPipeline

INSTEAD = "set `compile_update` to false"
NO_COMPILER = f"no C++ compiler is found. Install one, or {INSTEAD}"


def row_obstacle(task: Task[Any], config: TrainConfig) -> str | None:
    """Return why a step of the rollout cannot be compiled; None where it can."""
    if not is_capturable(task):
        return f"the task `{config.task.name}` steps on the host"
    if config.adversary.attacks_rollouts and config.adversary.forges:
        return "an adversary forges what is observed"
    return _precision_obstacle(config)


def losses_obstacle(config: TrainConfig) -> str | None:
    """Return why the losses of a minibatch cannot be compiled; None where they can."""
    return _precision_obstacle(config) or epochs_obstacle(config)


def _precision_obstacle(config: TrainConfig) -> str | None:
    """Return why nothing is compiled: another precision would round elsewhere than calls do."""
    if config.precision == "float32":
        return None
    return f"`precision` is `{config.precision}`, and only float32 is compiled"


def call_whole_steps(pipeline: GradientPipeline) -> None:
    """Let the steps of the optimizer be machine code; where there is no compiler, say so."""
    try:
        pipeline.call_whole_steps(compiled_library(whole_step.SOURCE, instead=INSTEAD))
    except ConfigError as error:
        tell_eager("steps of the optimizer", str(error).splitlines()[0], without=COMPILER)


_FIELDS = tuple(field.name for field in fields(Batch))
_NUMBERS = ("clip_range", "vf_coef", "bc_coef", "ent_coef", "kl_beta", "legacy_risk")
"""Of `Scheduled`, those that enter the losses."""
_STRUCTURAL = ("bc_coef", "legacy_risk")
"""Of these, the ones whose terms are left out where they are 0."""


class CompiledRow:
    """`rollout.played` as machine code.

    Args:
        task: whose steps read nothing on the host.
        agent: draws the actions.
        begins: env state, for shapes and types.
        generators: of actions, and of the task.

    Raises:
        ConfigError: if there is no compiler.
        RuntimeError: if a step of the task cannot be recorded.
    """

    def __init__(
        self,
        task: Task[Any],
        agent: Agent,
        begins: EnvState,
        generators: tuple[torch.Generator, torch.Generator],
    ) -> None:
        flat, self._form = _flat(begins), begins
        self._width = len(flat)
        self._row: list[str] = []
        self._output: list[str] = []

        def run(*tensors: Tensor) -> list[Tensor]:
            initial = agent.initial_memory(task.batch)  # within: it may be learned
            done = played(task, agent, initial, generators, _nested(begins, iter(tensors)))
            self._row, self._output = list(done.row), list(done.output)
            return [*_flat(done.after), *done.row.values(), *done.output.values()]

        self._run = compile_in_place(run, flat, instead=INSTEAD)

    def __call__(self, env_state: EnvState) -> Played:
        """Take a step."""
        made = self._run(*_flat(env_state))
        width = self._width
        place = width + len(self._row)
        return Played(
            _nested(self._form, iter(made)),
            dict(zip(self._row, made[width:place], strict=True)),
            dict(zip(self._output, made[place:], strict=True)),
        )


def _flat(nest: Tensor | tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of named tuples, which may hold others: a task around another does."""
    if isinstance(nest, Tensor):
        return [nest]
    return [tensor for part in nest for tensor in _flat(part)]


def _nested(form: Any, tensors: Iterator[Tensor]) -> Any:  # noqa: ANN401 - a nest
    """Return named tuples like others, of the next tensors."""
    if isinstance(form, Tensor):
        return next(tensors)
    return type(form)(*(_nested(part, tensors) for part in form))


class _Losses(NamedTuple):
    """Losses for batches of one form."""

    run: TensorFunction
    trained: list[Tensor]
    """Weights that get a gradient."""


class CompiledLosses:
    """`losses.batch_sums` whose memory, heads, losses and their gradients are machine code.

    Args:
        agent: is trained.
        config: of the run.
        generator: of sampled entropies.
    """

    def __init__(self, agent: Agent, config: TrainConfig, generator: torch.Generator) -> None:
        self._agent, self._config, self._generator = agent, config, generator
        self._known: dict[Hashable, _Losses] = {}
        self._rows: LstmRows | None = None
        self._fails = False

    def __call__(
        self, batch: Batch, now: Scheduled, planned: Tensor, imitation: Tensor
    ) -> Sums | None:
        """Add the gradient of the batch's share of a minibatch to the weights; return its sums.

        None, and nothing done, where it cannot be compiled, which is said once.

        Args:
            batch: sequences.
            now: numbers of this update; they may change from call to call.
            planned: weight of the minibatch.
            imitation: mean AWR weight of the minibatch.
        """
        if self._fails:
            return None
        try:
            return self._sums(batch, now, planned, imitation)
        except ConfigError as error:
            tell_eager("the losses of an update", str(error).splitlines()[0], without=COMPILER)
            self._fails = True
            return None

    def _sums(self, batch: Batch, now: Scheduled, planned: Tensor, imitation: Tensor) -> Sums:
        network = self._agent.network
        if self._rows is None and network.trunk.memory.kind == "lstm":
            self._rows = LstmRows(compiled_library(SOURCE, instead=INSTEAD))
        trunks, _ = network.remembered(batch.observation, batch.memory, batch.reset, self._rows)
        coefficients = [float(getattr(now, name)) for name in _NUMBERS]
        numbers = torch.tensor(coefficients, dtype=torch.float64)
        given = [
            *(trunk.detach() for trunk in trunks),
            *(getattr(batch, name) for name in _FIELDS),
            planned,
            imitation,
            numbers,
        ]
        left_out = tuple(name for name in _STRUCTURAL if is_zero(getattr(now, name)))
        shapes = (tensor.shape for tensor in given)
        form = (now.trains_policy, now.clips_values, left_out, *shapes)
        known = self._known.get(form)
        if known is None:
            known = self._known[form] = self._compile(given, len(trunks), now)
        made = known.run(*given)
        width = len(Sums._fields)
        slopes, own = made[width : width + len(trunks)], made[width + len(trunks) :]
        for weight, gradient in zip(known.trained, own, strict=True):
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        pairs = [pair for pair in zip(trunks, slopes, strict=True) if pair[0].requires_grad]
        if pairs:  # observations themselves, without encoder and memory, have no weights
            torch.autograd.backward([trunk for trunk, _ in pairs], [slope for _, slope in pairs])
        return Sums(*made[:width])

    def _compile(self, example: Sequence[Tensor], trunks: int, now: Scheduled) -> _Losses:
        network, weights = self._agent.network, self._agent.network.head_parameters()
        trained: list[Tensor] = []

        def run(*tensors: Tensor) -> list[Tensor]:
            *columns, planned, imitation, numbers = tensors[trunks:]
            batch = Batch(**dict(zip(_FIELDS, columns, strict=True)))
            each: dict[str, Any] = dict(zip(_NUMBERS, numbers.unbind(), strict=True))
            each |= {name: 0.0 for name in _STRUCTURAL if is_zero(getattr(now, name))}
            with torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in tensors[:trunks]]
                sums = batch_sums(
                    self._agent,
                    batch,
                    now._replace(**each),
                    self._config,
                    self._generator,
                    imitation=imitation,
                    outputs=network.heads(batch.observation, leaves),
                )
                share = sums.loss / planned.clamp(min=torch.finfo(planned.dtype).tiny)
                slopes = torch.autograd.grad(share, [*leaves, *weights], allow_unused=True)
            own = slopes[trunks:]
            pairs = zip(weights, own, strict=True)
            trained[:] = [weight for weight, slope in pairs if slope is not None]
            back = [
                torch.zeros_like(leaf) if slope is None else slope
                for leaf, slope in zip(leaves, slopes[:trunks], strict=True)
            ]
            return [
                *(part.detach() for part in sums),
                *back,
                *(slope for slope in own if slope is not None),
            ]

        return _Losses(compile_in_place(run, example, instead=INSTEAD), trained)


def compiled_parts(
    task: Task[Any],
    agent: Agent,
    config: TrainConfig,
    pipeline: GradientPipeline,
    begins: EnvState,
    generators: tuple[torch.Generator, torch.Generator, torch.Generator],
) -> tuple[CompiledLosses | None, CompiledRow | None]:
    """Compile what of an update can be; where something cannot, say why.

    Args:
        task: the environments.
        agent: is trained.
        config: of the run.
        pipeline: takes whole steps from now on.
        begins: env state, for shapes and types.
        generators: of actions, of the task, and of sampled entropies.

    Returns:
        Losses of a minibatch, and the step of a rollout; None where these stay calls.
    """
    if not has_compiler():
        tell_eager("updates", NO_COMPILER, without=COMPILER)
        return None, None
    call_whole_steps(pipeline)
    losses, row = None, None
    obstacle = losses_obstacle(config)
    if obstacle is None:
        losses = CompiledLosses(agent, config, generators[2])
    else:
        tell_eager("the losses of an update", obstacle, without=COMPILER)
    obstacle = row_obstacle(task, config)
    if obstacle is None:
        try:
            row = CompiledRow(task, agent, begins, generators[:2])
        except (ConfigError, RuntimeError) as error:  # no compiler; a task that reads a value
            obstacle = str(error).splitlines()[0]
    if obstacle is not None:
        tell_eager("rollouts", obstacle, without=COMPILER)
    return losses, row
