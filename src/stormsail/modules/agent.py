"""`Agent`: a network with its normalisers that decides in training, backtests and live."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor, nn

from stormsail.core import plugins
from stormsail.core.config import Config
from stormsail.core.errors import ArtifactError, ConfigError, ShapeError, StormsailError
from stormsail.core.files.artifact import Contents, read_artifact, write_artifact
from stormsail.core.files.documents import JsonValue, plain
from stormsail.core.notebook import html_table, short_repr
from stormsail.core.task import (
    Actions,
    Columns,
    ContinuousActions,
    DiscreteActions,
    ImagePart,
    MultiDiscreteActions,
)
from stormsail.modules.actions import ActionHead
from stormsail.modules.config import MAX_WIDTH, CriticConfig, NetworkConfig, PolicyConfig, Width
from stormsail.modules.network import Network
from stormsail.modules.scale import Held, ObservationScale, ReturnScale

KIND = "agent"

BEST = "best"
"""Folder of a run that holds its best agent."""

_RUN_FILES = ("checkpoints", "config.toml", "population.jsonl")
"""Names of which a run or a population has one or more, and an agent none."""

_MODEL = "model"
_SPEC = "agent"
_MONOTONE = "monotone_quantiles"
_CENTRED = "centred"
"""Form of monotone quantiles; agents that do not name it summed up from the lowest quantile."""

_POLICY = "policy"

PLUGINS = "plugins"
"""Entry of a binding: what of plug-ins the agent and its training use, from `core.plugins.used`."""

JudgedPolicy = Literal["greedy", "sampled"]
"""The likeliest action always, or actions drawn as in training."""


class ActionSpec(Config):
    """Actions of a task, as written into a file."""

    kind: Literal["discrete", "multi_discrete", "continuous"]
    """Classes, several choices of a class each, or numbers within bounds."""

    count: Annotated[int, Field(ge=0, le=MAX_WIDTH)] = 0
    """Number of classes."""

    counts: tuple[Annotated[int, Field(ge=1, le=MAX_WIDTH)], ...] = ()
    """Number of classes of each choice."""

    low: tuple[float, ...] = ()
    """Lower bounds."""

    high: tuple[float, ...] = ()
    """Upper bounds."""

    @classmethod
    def of(cls, actions: Actions) -> Self:
        """Return the description of a task's actions."""
        if isinstance(actions, DiscreteActions):
            return cls(kind="discrete", count=actions.count)
        if isinstance(actions, MultiDiscreteActions):
            return cls(kind="multi_discrete", counts=actions.counts)
        return cls(kind="continuous", low=actions.low, high=actions.high)

    def actions(self) -> Actions:
        """Return the actions that this describes."""
        if self.kind == "discrete":
            return DiscreteActions(self.count)
        if self.kind == "multi_discrete":
            return MultiDiscreteActions(self.counts)
        return ContinuousActions(self.low, self.high)


class ImageSpec(Config):
    """An image within an observation, as written into a file."""

    name: str
    """Where it is in the observation."""

    channels: Width
    """Number of channels."""

    height: Width
    """Rows of pixels."""

    width: Width
    """Columns of pixels."""

    @classmethod
    def of(cls, image: ImagePart) -> Self:
        """Return the description of an image."""
        return cls(name=image.name, channels=image.channels, height=image.height, width=image.width)

    def part(self) -> ImagePart:
        """Return the image that this describes."""
        return ImagePart(self.name, self.channels, self.height, self.width)


class AgentSpec(Config):
    """Specification of an agent: everything but its weights."""

    observation_names: tuple[str, ...]
    """Names of the observed columns that are no pixels, in order."""

    unscaled: tuple[str, ...] = ()
    """Columns that are not normalised."""

    images: tuple[ImageSpec, ...] = ()
    """Images, whose pixels follow the named columns and are not normalised."""

    after_memory: tuple[str, ...] = ()
    """Columns that also go to the actor's layers directly, past encoder and memory, normalised."""

    actions: ActionSpec
    """Actions of the task."""

    network: NetworkConfig = NetworkConfig()
    """Trunk and head layers."""

    policy: PolicyConfig = PolicyConfig()
    """Action distribution."""

    critic: CriticConfig = CriticConfig()
    """What its critics predict."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = self.observation_names
        if not (names or self.images) or len(set(names)) != len(names):
            raise ValueError("`observation_names` must be one or more different names")
        unknown = sorted(set(self.unscaled) - set(names))
        if unknown:
            raise ValueError(f"`unscaled` must name columns of the agent, not {unknown}")
        joined = self.after_memory
        if not set(joined) <= set(names) or len(set(joined)) != len(joined):
            raise ValueError(
                f"`after_memory` must name different columns of the agent, not {joined}"
            )
        if self.columns > MAX_WIDTH:
            raise ValueError(
                f"an observation must have at most {MAX_WIDTH} columns with its pixels"
            )
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `after_memory` where there is none, as files of earlier versions do."""
        written: dict[str, Any] = write(self)
        if not self.after_memory:
            written.pop("after_memory", None)
        return written

    @property
    def columns(self) -> int:
        """Number of observed columns F, pixels included."""
        return len(self.observation_names) + sum(image.part().size for image in self.images)


class Draw(NamedTuple):
    """Sampled actions for B environments, with the network's outputs."""

    action: Tensor
    """For the task."""
    raw_action: Tensor
    """The same before squashing, in which probabilities are exact."""
    log_prob: Tensor
    """[B]."""
    parameters: Tensor
    """Of the distribution it was drawn from, [B, D]."""
    predicted: Tensor
    """Output of each critic, normalised, [B, C, W]."""
    memory: Tensor
    """To be passed to the next call, [B, L, P, H]."""
    features: Tensor
    """Output of the actor's memory, [B, H]."""


class Decision(NamedTuple):
    """Decisions of an agent for B environments, with values and return distributions."""

    action: Tensor
    """For the task."""
    raw_action: Tensor
    """The same before squashing, in which probabilities are exact."""
    log_prob: Tensor
    """[B]."""
    parameters: Tensor
    """Of the distribution it was drawn from, [B, D]."""
    value: Tensor
    """Expected return in reward units, [B]."""
    distribution: Tensor
    """Quantiles at `Agent.levels`, in reward units, or probabilities of `Agent.atoms`, [B, W]."""
    predicted: Tensor
    """Output of each critic, normalised, [B, C, W]."""
    memory: Tensor
    """To be passed to the next call, [B, L, P, H]."""
    features: Tensor
    """Output of the actor's memory, [B, H]."""


@dataclass(frozen=True)
class Binding:
    """Data, features and costs that an agent was trained for; an agent is used with the same."""

    values: Mapping[str, JsonValue]

    def check(self, **current: JsonValue) -> None:
        """Refuse values that differ, by name; names that the agent is not bound to are ignored.

        Raises:
            ConfigError: if a value differs.
        """
        for name, wanted in self.values.items():
            # plain: a tuple is a list in files
            if name in current and plain(current[name]) != plain(wanted):
                raise ConfigError(
                    "config-inconsistent",
                    wrong=f"`{name}` must be what the agent was trained for, {wanted}",
                    found=str(current[name]),
                    remedy="Use the data and costs of its training, or train another agent.",
                )


class Agent(nn.Module):
    """A network with its normalisers: observation in, decision out.

    Args:
        spec: its specification.
        generator: source of the initial weights.
        binding: what it is trained for, such as feature schema, bar length and fees.

    Attributes:
        judged_policy: by which of its policies it was evaluated and chosen, so the one to use it
            with; `greedy` where nothing was evaluated. Files of earlier versions do not name it:
            their agents were all judged by the greedy policy, and load as that.
    """

    judged_policy: JudgedPolicy

    def __init__(
        self,
        spec: AgentSpec,
        generator: torch.Generator,
        *,
        binding: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.binding = Binding(dict(binding or {}))
        self.lineage: tuple[dict[str, JsonValue], ...] = ()
        """Stages of its training, oldest first; its artifact holds them (docs/runs.md)."""
        self.judged_policy = "greedy"
        names = spec.observation_names
        frozen = torch.tensor([name in spec.unscaled for name in names], dtype=torch.bool)
        self.observation_scale = ObservationScale(len(names), frozen=frozen)
        self.return_scale = ReturnScale()
        self.network = Network(
            len(names),
            spec.actions.actions(),
            network=spec.network,
            policy=spec.policy,
            critic=spec.critic,
            generator=generator,
            images=[image.part() for image in spec.images],
            after_memory=[names.index(name) for name in spec.after_memory],
        )

    def _shown(self) -> dict[str, object]:
        spec, bound = self.spec, self.binding.values
        actions = spec.actions.actions()
        layers = f" of {spec.network.lstm_hidden_size}" if spec.network.memory != "none" else ""
        return {
            "trained for": bound.get("task", "not stated"),
            "observation": f"{spec.columns} columns",
            "actions": actions,
            "memory": f"{spec.network.memory}{layers}",
            "critic": spec.critic.kind,
            "policy": self.judged_policy,
            "weights": f"{sum(weight.numel() for weight in self.parameters()):,}",
        }

    def __repr__(self) -> str:
        return short_repr("Agent", self._shown())

    def _repr_html_(self) -> str:
        return html_table("Agent", self._shown())

    def initial_memory(self, batch: int) -> Tensor:
        """Return the memory before the first observation of an episode."""
        return self.network.initial_memory(batch)

    @torch.no_grad()
    def decide(
        self,
        observation: Tensor,
        memory: Tensor,
        *,
        deterministic: bool,
        generator: torch.Generator | None = None,
        mask: Tensor | None = None,
    ) -> Decision:
        """Return a decision for each environment.

        Args:
            observation: as the task gives it, [B, F].
            memory: from the decision before, or `initial_memory`; reset by the caller where an
                episode begins.
            deterministic: take the mode instead of drawing.
            generator: needed to draw.
            mask: classes that are allowed, bool [B, D], as `core.task.action_mask` gives them; None
                allows all.

        Raises:
            ShapeError: if the observation has other columns, or the mask other classes.
            ConfigError: if it must draw and has no generator.
        """
        drawn = self.draw(
            self.normalised(observation),
            memory,
            deterministic=deterministic,
            generator=generator,
            mask=mask,
        )
        critic, predicted = self.network.critic, drawn.predicted
        joint = critic.distribution(predicted)
        if self.spec.critic.kind != "categorical":
            joint = self.return_scale.decode(joint)
        return Decision(
            value=self.return_scale.decode(critic.value(predicted)),
            distribution=joint,
            **drawn._asdict(),
        )

    @torch.no_grad()
    def draw(
        self,
        seen: Tensor,
        memory: Tensor,
        *,
        deterministic: bool,
        generator: torch.Generator | None = None,
        mask: Tensor | None = None,
        columns: Columns | None = None,
        reset: Tensor | None = None,
    ) -> Draw:
        """Return an action for each environment from `normalised` observations, without values.

        The environments may be some `columns` of more: then numbers for all are drawn. Where
        `reset` is true, bool [B], the memory is taken to be the initial one. The other arguments
        are those of `decide`.

        Raises:
            ConfigError: if it must draw and has no generator.
        """
        if reset is None:
            reset = torch.zeros(seen.shape[0], dtype=torch.bool, device=seen.device)
        output = self.network(seen[None], memory, reset[None])
        head = self.network.head
        parameters = head.masked(output.actor[0], mask)
        if deterministic:
            raw = head.mode(parameters)
        elif generator is None:
            raise ConfigError(
                "config-inconsistent",
                wrong="a decision that is drawn must have a generator",
                found="none",
                remedy="Pass `generator`, or `deterministic=True`.",
            )
        else:
            raw = _sampled(head, parameters, generator, columns)
        return Draw(
            action=head.to_task(raw),
            raw_action=raw,
            log_prob=head.log_prob(parameters, raw),
            parameters=parameters,
            predicted=output.critic[0],
            memory=output.memory,
            features=output.features[0],
        )

    def normalised(self, observation: Tensor, held: Held | None = None) -> Tensor:
        """Return the observation as the network sees it.

        Args:
            observation: as the task gives it, [*b, F].
            held: of the observation scale; None takes its statistics of now.

        Raises:
            ShapeError: if it has other columns.
        """
        columns = self.spec.columns
        if observation.shape[-1:] != (columns,):
            raise ShapeError(
                wrong=f"an observation must have the {columns} columns of the agent's training",
                found=f"observation {tuple(observation.shape)}",
                remedy="Compute the same features in the same order.",
            )
        scaled: Tensor = self.observation_scale(self.named_columns(observation), held)
        if not self.spec.images:
            return scaled
        return torch.cat((scaled, observation[..., len(self.spec.observation_names) :]), -1)

    def named_columns(self, observation: Tensor) -> Tensor:
        """Return the columns of an observation that are no pixels, [*b, N]."""
        return observation[..., : len(self.spec.observation_names)]

    @property
    def atoms(self) -> Tensor:
        """Support of a categorical critic in reward units, [K]."""
        return self.return_scale.decode(self.network.critic.atoms)

    @property
    def levels(self) -> Tensor:
        """Levels of the quantiles of a `Decision`'s distribution, float64 [W]."""
        return self.network.critic.distribution_levels()

    def contents(self) -> Contents:
        """Return the contents of its artifact."""
        return Contents(
            tensors={_MODEL: self.state_dict()},
            documents={_SPEC: self.spec.model_dump(mode="json")},
            metadata={
                "binding": dict(self.binding.values),
                "lineage": list(self.lineage),
                _POLICY: self.judged_policy,
                **self._forms(),
            },
        )

    def _forms(self) -> dict[str, JsonValue]:
        """Return the form of each part whose meaning depends on the version that wrote it."""
        return {_MONOTONE: _CENTRED} if self.spec.critic.monotone_quantiles else {}

    def save(self, path: Path | str) -> None:
        """Write the agent as one artifact.

        Raises:
            ArtifactError: if the path is taken or the disk refuses.
        """
        write_artifact(path, kind=KIND, contents=self.contents())

    @classmethod
    def load(cls, path: Path | str, *, device: torch.device | str = "cpu") -> Self:
        """Read an agent, or the best one of a run.

        Args:
            path: folder of an agent, or of a run, whose `best` is taken.
            device: where its tensors are to live.

        Raises:
            ArtifactError: if there is none, or the artifact is damaged, of another kind, or does
                not fit itself.
        """
        path = agent_folder(Path(path))
        artifact = read_artifact(path, kind=KIND)
        tensors = artifact.tensors.get(_MODEL, {})
        spec = artifact.documents.get(_SPEC)
        return cls.restored(spec, tensors, artifact.metadata, path).to(device)

    @classmethod
    def restored(
        cls,
        spec: JsonValue,
        tensors: Mapping[str, Tensor],
        metadata: Mapping[str, JsonValue],
        path: Path | str,
    ) -> Self:
        """Return the agent that parts of an artifact describe.

        Raises:
            ArtifactError: if they do not fit each other.
        """
        binding = metadata.get("binding")
        if not isinstance(spec, dict) or not isinstance(binding, dict):
            raise _unfit(path, "no description of an agent")
        policy = metadata.get(_POLICY, "greedy")  # which earlier versions did not write
        if policy not in get_args(JudgedPolicy):
            raise _unfit(path, f"the policy {policy!r}")
        plugins.require(binding.get(PLUGINS), owner=f"the agent in {path}", kinds=("network",))
        try:
            with torch.device("meta"):  # shapes only: a false description must not cost memory
                agent = cls(_described(spec), torch.Generator("cpu"), binding=binding)
        except StormsailError as error:
            raise _unfit(path, str(error)) from None
        missing = [name for name, form in agent._forms().items() if metadata.get(name) != form]
        if missing:
            raise _unfit(
                path,
                f"`{missing[0]}` in the form of an earlier version, whose weights mean other "
                "quantiles here",
            )
        own = agent.state_dict()
        if set(own) != set(tensors) or any(_differs(own[name], tensors[name]) for name in own):
            raise _unfit(path, "tensors of another network")
        agent.to_empty(device="cpu").load_state_dict(dict(tensors))
        agent.network.critic.fill_levels()
        stages = metadata.get("lineage", [])
        if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
            raise _unfit(path, "a lineage that is no list of stages")
        agent.lineage = tuple(stage for stage in stages if isinstance(stage, dict))
        agent.judged_policy = policy  # type: ignore[assignment]  # checked above
        return agent


def read_binding(path: Path | str) -> Mapping[str, JsonValue]:
    """Return what a saved agent is bound to, without building it, which may need plug-ins.

    Raises:
        ArtifactError: if there is none, or the artifact is damaged or of another kind.
    """
    place = agent_folder(Path(path))
    binding = read_artifact(place, kind=KIND).metadata.get("binding")
    if not isinstance(binding, dict):
        raise _unfit(place, "no description of an agent")
    return binding


def agent_folder(path: Path) -> Path:
    """Return the folder of the best agent of a run, or that of the agent itself.

    Raises:
        ArtifactError: if the run has saved no agent yet, or the folder is that of a population.
    """
    best = path / BEST
    if best.is_dir():
        return best
    if not any((path / name).exists() for name in _RUN_FILES):
        return path
    population = (path / _RUN_FILES[-1]).is_file()
    raise ArtifactError(
        "artifact-missing",
        wrong=f"{path} must be a run with an agent in `{BEST}`",
        found="a population of runs" if population else "a run that has saved none yet",
        remedy="Name the folder of a member."
        if population
        else "Train until the first evaluation; `validation.every_updates` says when.",
    )


def _sampled(
    head: ActionHead, parameters: Tensor, generator: torch.Generator, columns: Columns | None
) -> Tensor:
    """Draw actions; those of some environments out of numbers that are drawn for all."""
    if columns is None:
        return head.sample(parameters, generator)
    whole = parameters.new_zeros(columns.whole, *parameters.shape[1:])
    columns.of(whole).copy_(parameters)
    return columns.of(head.sample(whole, generator)).contiguous()


def _described(spec: Mapping[str, JsonValue]) -> AgentSpec:
    """Return the specification in a file; those of earlier versions do not name their levels."""
    critic = spec.get("critic")
    if isinstance(critic, dict):
        spec = {**spec, "critic": {"levels": "uniform", **critic}}
    return AgentSpec.from_mapping(spec)


def _differs(own: Tensor, saved: Tensor) -> bool:
    return own.shape != saved.shape or own.dtype != saved.dtype


def _unfit(path: Path | str, problem: str) -> ArtifactError:
    return ArtifactError(
        "artifact-document",
        wrong=f"{path} must describe an agent and hold the tensors that it needs",
        found=problem,
        remedy="Use an artifact that this version of the package wrote.",
    )
