"""Checkpoints: the whole state of a learner as one artifact, and its restoration bit for bit.

Saved are the agent with its normalisers, optimizer, scaler, controllers, return statistics, the
state of every environment with the agent's memory, every random stream, and the counters. A resumed
run computes what it would have computed without the interruption.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail import __version__
from stormsail.algorithms.config import CheckpointConfig, TrainConfig
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.state_tree import flatten, unflatten
from stormsail.algorithms.update.nonfinite import all_finite, are_finite, tensors_of
from stormsail.algorithms.update.rollout import EnvState, begin
from stormsail.core.errors import ArtifactError
from stormsail.core.files import tensor_file
from stormsail.core.files.artifact import Artifact, Contents
from stormsail.core.files.documents import JsonValue
from stormsail.core.task import action_mask
from stormsail.functional.advantage import RunningMoments

FORMAT = 7
"""Version of the contents of a checkpoint; another one is refused."""

KIND = "checkpoint"

METRICS = "metrics"
"""The only part whose tensors may hold NaN: a metric that is not known yet."""

SPEC = "agent"
"""Document with the specification of the agent."""

_STATE = "state"
_CONFIG = "config.toml"

State = dict[str, Any]
"""Parts of a run by name, each a nested value as `state_tree` takes it."""


class Counters(NamedTuple):
    """Counters of the learner."""

    update_count: int
    explained_variance: float | None
    rate_factor: float
    refusals: int


def identity(config: TrainConfig, binding: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what must agree before a checkpoint is used: versions, settings, data, task.

    Settings that concern only the disk change nothing that is computed, so they may differ.
    """
    return {
        "format": FORMAT,
        "code_version": __version__,
        "config_hash": computed_config(config).config_hash(),
        **{f"bound_{name}": value for name, value in binding.items()},
    }


def computed_config(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the settings of the disk at their defaults."""
    plain = CheckpointConfig(every_updates=config.checkpoint.every_updates)
    return config.replace(checkpoint=plain)


def pack(
    state: Mapping[str, object],
    config: TrainConfig,
    metadata: Mapping[str, object],
    spec: JsonValue = None,
) -> Contents:
    """Return the contents of an artifact that holds these parts.

    Args:
        state: by part.
        config: of the run.
        metadata: from `identity`.
        spec: of the agent, for a run that begins from it; None leaves it out.
    """
    trees: dict[str, JsonValue] = {}
    groups: dict[str, dict[str, Tensor]] = {}
    for part, value in state.items():
        trees[part], tensors = flatten(value)
        if tensors:
            groups[part] = tensors
    return Contents(
        tensors=groups,
        documents={_STATE: trees} if spec is None else {_STATE: trees, SPEC: spec},
        blobs={_CONFIG: config.to_toml().encode("utf-8")},
        metadata=metadata,
        allow_nonfinite=(METRICS,),
    )


def unpack(artifact: Artifact) -> State:
    """Return the parts of a checkpoint.

    Raises:
        ArtifactError: if its document and its tensors do not belong together.
    """
    trees = artifact.documents.get(_STATE)
    if not isinstance(trees, dict) or not set(artifact.tensors) <= set(trees):
        raise _unfit(_STATE, "no table of its parts")
    return {part: unflatten(tree, artifact.tensors.get(part, {})) for part, tree in trees.items()}


def learner_state(ppo: Ppo) -> State:
    """Return everything that the coming updates of a learner depend on."""
    counters = Counters(ppo.update_count, ppo.explained_variance, ppo.rate_factor, ppo.refusals)
    return {
        "agent": dict(ppo.agent.state_dict()),
        "optimizer": ppo.optimizer.state_dict(),
        "scaler": None if ppo.pipeline.scaler is None else ppo.pipeline.scaler.state_dict(),
        "heads": None if ppo.heads is None else ppo.heads.state_dict(),
        "kl": ppo.kl.state_dict(),
        "entropy": ppo.entropy.state_dict(),
        "returns": ppo.returns.state_dict(),
        "risk": None if ppo.risk is None else ppo.risk.state_dict(),
        "advantages": ppo.advantage_moments,
        "env_state": ppo.env_state,
        "generators": ppo.generators.state(),
        "counters": counters._asdict(),
    }


def floating_state(ppo: Ppo) -> Iterator[Tensor]:
    """Yield all floating tensors of `learner_state`, most of them themselves: nothing is packed."""
    optimizer, scaler = ppo.optimizer, ppo.pipeline.scaler
    rates = [group["lr"] for group in optimizer.param_groups]
    nest = [ppo.advantage_moments, ppo.env_state, *optimizer.state.values(), *rates]
    if ppo.heads is not None:
        nest.append(ppo.heads.state_dict())
    if ppo.risk is not None and ppo.risk.critic is not None:
        nest.append(ppo.risk.state_dict())
    parts = [*ppo.pipeline.tensors, *ppo.agent.buffers()]
    parts += [] if scaler is None else scaler.floating_state()
    parts += [tensor for _, tensor in tensors_of(nest, "")]
    yield from (part for part in parts if part.is_floating_point())


def state_flags(ppo: Ppo, entropy: Tensor) -> list[Tensor]:
    """Return flags that all hold where `floating_state` is finite, and so is the entropy.

    Not exactly there: see `nonfinite.all_finite`. On a GPU nothing is waited for.
    """
    arrays = [*floating_state(ppo), entropy]
    if not ppo.recorder.captured:
        return all_finite(arrays)
    here = tuple(array for array in arrays if array.is_cuda)
    others = [array for array in arrays if not array.is_cuda]
    return [ppo.recorder("the check of the state", are_finite, here), *all_finite(others)]


def restore_learner(ppo: Ppo, state: State) -> None:
    """Restore a newly made learner from a saved state. After an error it must be discarded.

    Raises:
        ArtifactError: if the state is not one of such a learner.
    """
    _restore_learned(ppo, state)
    with _refusing("optimizer"):
        _restore_optimizer(ppo, state["optimizer"])
    with _refusing("heads"):
        if ppo.heads is not None:
            ppo.heads.load_optimizer(state["heads"])
    with _refusing("counters"):
        _restore_counters(ppo, state["counters"])
    with _refusing("generators"):
        ppo.generators.restore(state["generators"])
    with _refusing("env_state"):
        _restore_env_state(ppo, state["env_state"])


def adopt_learner(ppo: Ppo, state: State, own: State, *, keeps_optimizer: bool) -> None:
    """Give a newly made learner what another one has learned. After an error it must be discarded.

    Taken over are weights, normalisers, scaler, controllers, return statistics and the number of
    updates; settings stay those of the learner, in every group of its optimizer too. Random streams
    go on with those of `own`; environments and memory begin anew, and so does the halving of
    refused steps.

    Args:
        ppo: the learner, with the settings that it is to use.
        state: of the other one.
        own: state whose random streams go on.
        keeps_optimizer: whether the state of the optimizer is taken over; otherwise it is fresh.

    Raises:
        ArtifactError: if the state does not fit such a learner.
    """
    _restore_learned(ppo, state)
    if keeps_optimizer:
        with _refusing("optimizer"):
            entries = state["optimizer"]["state"]
            _check_optimizer_state(ppo, entries)
            ppo.optimizer.load_state_dict({**ppo.optimizer.state_dict(), "state": entries})
        with _refusing("heads"):
            if ppo.heads is not None:
                ppo.heads.load_optimizer(state["heads"])
    with _refusing("counters"):
        _restore_counters(ppo, {**state["counters"], "rate_factor": 1.0, "refusals": 0})
    with _refusing("generators"):
        ppo.generators.restore(own["generators"])
    ppo.env_state = begin(ppo.task, ppo.agent, ppo.generators.stream("task"))
    ppo.apply_rate()


def _restore_learned(ppo: Ppo, state: State) -> None:
    """Restore what was learned: weights, normalisers, scaler, controllers and statistics."""
    with _refusing("agent"):
        saved = _fitting("agent", state["agent"], ppo.agent.state_dict())
        ppo.agent.load_state_dict(saved)
    with _refusing("scaler"):
        _restore_scaler(ppo, state["scaler"])
    parts: dict[str, Callable[[JsonValue], None]] = {
        "kl": ppo.kl.load_state_dict,
        "entropy": ppo.entropy.load_state_dict,
        "returns": ppo.returns.load_state_dict,
    }
    for part, load in parts.items():
        with _refusing(part):
            load(state[part])
    with _refusing("heads"):
        _restore_heads(ppo, state["heads"])
    with _refusing("risk"):
        _restore_risk(ppo, state["risk"])
    with _refusing("advantages"):
        _restore_advantages(ppo, state["advantages"])


def keep_optimizer(ppo: Ppo, state: State) -> None:
    """Give a newly made learner the optimizer and the scaler of another run.

    Raises:
        ArtifactError: if they are of another kind, or have other settings.
    """
    with _refusing("optimizer"):
        _restore_optimizer(ppo, state["optimizer"])
    with _refusing("heads"):
        if ppo.heads is not None and state["heads"] is not None:
            ppo.heads.load_optimizer(state["heads"])
    with _refusing("scaler"):
        _restore_scaler(ppo, state["scaler"])


def _restore_optimizer(ppo: Ppo, saved: dict[str, Any]) -> None:
    """Load the optimizer after checking that its tensors are those of these parameters."""
    own = ppo.optimizer.state_dict()
    for old, new in zip(own["param_groups"], saved["param_groups"], strict=True):
        if {**new, "lr": None} != {**old, "lr": None}:
            raise _unfit("optimizer", "settings of another one")
    _check_optimizer_state(ppo, saved["state"])
    ppo.optimizer.load_state_dict(saved)


def _check_optimizer_state(ppo: Ppo, entries: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Refuse tensors that are not those of the parameters of the learner's optimizer."""
    parameters = [part for group in ppo.optimizer.param_groups for part in group["params"]]
    for number, entry in entries.items():
        shape = parameters[number].shape
        for name, tensor in entry.items():
            if tensor.shape != (() if name == "step" else shape) or not tensor.is_floating_point():
                raise _unfit("optimizer", f"`{name}` of the shape {tuple(tensor.shape)}")


def _restore_scaler(ppo: Ppo, saved: dict[str, Any] | None) -> None:
    scaler = ppo.pipeline.scaler
    if (scaler is None) != (saved is None):
        raise _unfit("scaler", "one" if scaler is None else "none")
    if scaler is None or saved is None:
        return
    own = scaler.state_dict()
    saved = {"reference": "absolute", **saved}  # written before there was another
    for name in ("version", "statistic", "reference"):
        if saved[name] != own[name]:  # the scaler itself would start anew, with a warning
            raise _unfit("scaler", f"the {name} {saved[name]!r}")
    _fitting("scaler", flatten(saved)[1], flatten(own)[1])
    scaler.load_state_dict(saved)


def _restore_heads(ppo: Ppo, saved: dict[str, Any] | None) -> None:
    """Restore what the heads remember; their optimizer is restored where the other one is."""
    if (ppo.heads is None) != (saved is None):
        raise _unfit("heads", "some" if ppo.heads is None else "none")
    if ppo.heads is not None and saved is not None:
        ppo.heads.load_memory(saved)


def _restore_risk(ppo: Ppo, saved: dict[str, Any] | None) -> None:
    if (ppo.risk is None) != (saved is None):
        raise _unfit("risk", "one" if ppo.risk is None else "none")
    if ppo.risk is not None and saved is not None:
        ppo.risk.load_state_dict(saved)


def _restore_advantages(ppo: Ppo, saved: tuple[Tensor, ...] | None) -> None:
    if saved is not None and not all(
        part.shape == () and part.dtype == torch.float64 for part in saved
    ):
        raise _unfit("advantages", "moments that are not one number each")
    device = ppo.task.device
    moments = None if saved is None else RunningMoments(*(part.to(device) for part in saved))
    ppo.advantage_moments = moments


def _restore_counters(ppo: Ppo, saved: dict[str, Any]) -> None:
    counters = Counters(**saved)
    kinds: tuple[tuple[object, type | tuple[type, ...]], ...] = (
        (counters.update_count, int),
        (counters.explained_variance, (float, type(None))),
        (counters.rate_factor, float),
        (counters.refusals, int),
    )
    if not all(isinstance(value, kind) for value, kind in kinds) or counters.update_count < 0:
        raise _unfit("counters", f"{counters}")
    ppo.update_count, ppo.explained_variance = counters.update_count, counters.explained_variance
    ppo.rate_factor, ppo.refusals = counters.rate_factor, counters.refusals


def _restore_env_state(ppo: Ppo, saved: object) -> None:
    """Restore the environments, and check the state by one step whose result is discarded.

    Only the task knows what its state may hold; a step that fails shows an invalid one. The
    environments of Gymnasium hide their state, so there new episodes begin.
    """
    from stormsail.tasks.gymnasium_task import GymnasiumTask  # imports Gymnasium

    if isinstance(ppo.task, GymnasiumTask):
        ppo.env_state = begin(ppo.task, ppo.agent, ppo.generators.stream("task"))
        return
    restored: EnvState = _like(ppo.env_state, saved)
    decision = ppo.agent.decide(
        restored.observation,
        restored.memory,
        deterministic=True,
        mask=action_mask(ppo.task, restored.state),
    )
    spare = torch.Generator(device=ppo.task.device).manual_seed(0)
    ppo.task.step(restored.state, decision.action, spare)
    ppo.env_state = restored


def _like(template: Any, saved: Any) -> Any:  # noqa: ANN401 - a nest of named tuples and tensors
    """Return the saved nest with the named tuples and on the device of the template."""
    if isinstance(template, Tensor):
        if not isinstance(saved, Tensor) or (saved.dtype, saved.shape) != (
            template.dtype,
            template.shape,
        ):
            raise _unfit("env_state", "a tensor of another type or shape")
        return saved.to(template.device)
    if not isinstance(template, tuple) or not isinstance(saved, tuple):
        raise _unfit("env_state", f"a value of the type {type(saved).__name__}")
    return type(template)(*(_like(a, b) for a, b in zip(template, saved, strict=True)))


def _fitting(
    part: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the saved tensors if they have the names, types and shapes of the part's own."""
    difference = tensor_file.difference(
        tensor_file.specification(own), tensor_file.specification(saved)
    )
    if difference is not None:
        raise _unfit(part, difference)
    return dict(saved)


@contextlib.contextmanager
def _refusing(part: str) -> Iterator[None]:
    """Turn every error of a part about foreign data into one kind of refusal."""
    try:
        yield
    except ArtifactError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _unfit(part, f"{type(error).__name__} {error}".splitlines()[0]) from error


def _unfit(part: str, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"the saved state of `{part}` must be one of this run",
        found=problem,
        remedy="Go back to an older generation, or start a new run.",
    )
