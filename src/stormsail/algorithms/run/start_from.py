"""Begin a run from another agent: its weights and normalisers, and its optimizer where wanted.

Memory, environments, random streams, controllers, return statistics and counters are those of a new
run: only what the network has learned is taken over.
"""

from dataclasses import dataclass
from pathlib import Path

from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.checkpoint import State
from stormsail.algorithms.run.folder import MANIFEST, differences, read_lineage
from stormsail.algorithms.run.lineage import Source
from stormsail.core.config import toml
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.files.artifact import read_artifact
from stormsail.core.files.documents import JsonValue
from stormsail.core.files.generations import Generations
from stormsail.modules.agent import KIND as AGENT
from stormsail.modules.agent import PLUGINS, Agent

OF_THE_TRAINING = {
    "critic.learning_rate_factor",
    "critic.head_steps",
    "critic.head_batch",
    "critic.head_rollouts",
    "critic.head_rate",
    "network.first_layer",
}
"""Settings of an agent's specification that its weights do not depend on once they are trained: a
run may begin from the agent with others."""


@dataclass(frozen=True, eq=False)
class Start:
    """What a run begins from."""

    path: Path
    agent: Agent
    source: Source
    optimizer: State | None
    """Checkpoint whose optimizer is kept; None begins with a fresh one."""

    def fill(self, agent: Agent) -> None:
        """Give the agent of a new run these weights and normalisers.

        Raises:
            ConfigError: if its columns, actions or network are others; it names all differences.
        """
        changed = [
            change
            for change in differences(self.agent.spec, agent.spec)
            if change[0] not in OF_THE_TRAINING
        ]
        if changed:
            names = ", ".join(f"`{name}`" for name, _, _ in changed)
            raise ConfigError(
                "config-inconsistent",
                wrong=f"{names} must be as in the agent {self.path} that the run begins from",
                found=", ".join(
                    f"`{name}` {toml.shown(new)} instead of {toml.shown(old)}"
                    for name, old, new in changed
                ),
                remedy="Set them to the agent's, or begin without `--from`.",
            )
        agent.load_state_dict(self.agent.state_dict())

    def fill_optimizer(self, ppo: Ppo) -> None:
        """Give the learner of a new run the kept optimizer, if there is one.

        Raises:
            ArtifactError: if it is another optimizer or has other settings.
        """
        if self.optimizer is not None:
            checkpoint.keep_optimizer(ppo, self.optimizer)


def load_start(path: Path | str, *, keep_optimizer: bool) -> Start:
    """Return what a run begins from.

    Args:
        path: an agent, such as `best` in the folder of a run; or the folder of a run, which stands
            for its newest checkpoint.
        keep_optimizer: begin with its optimizer, too, which only a checkpoint has.

    Raises:
        ArtifactError: if there is no such agent, it is damaged, or it has no optimizer to keep.
    """
    path = Path(path)
    if (path / "checkpoints").is_dir() and (path / MANIFEST).is_file():
        return _from_run(path, keep_optimizer=keep_optimizer)
    agent = Agent.load(path)
    if keep_optimizer:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must have an optimizer to keep",
            found=f"an artifact of the kind `{AGENT}`, which holds weights and normalisers only",
            remedy="Pass the folder of its run, whose checkpoints have one, or let the optimizer "
            "be a fresh one.",
        )
    known = agent.lineage[-1] if agent.lineage else {}
    source = Source.from_state(
        {
            "agent": read_artifact(path, kind=AGENT).digest,
            "name": path.resolve().name,
            "steps": known.get("steps"),
            "settings": known.get("config_hash"),
        },
        part="lineage",
    )
    return Start(path, agent, source, None)


def _from_run(path: Path, *, keep_optimizer: bool) -> Start:
    """Return the newest checkpoint of a run; nothing in its folder is touched."""
    generations = Generations(path / "checkpoints", kind=checkpoint.KIND)
    steps = generations.steps()
    if not steps:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{path} must hold a checkpoint to begin from",
            found="none",
            remedy="Train there first.",
        )
    artifact = generations.load(steps[-1], allow_nonfinite=(checkpoint.METRICS,))
    state = checkpoint.unpack(artifact)
    hashed: JsonValue = artifact.metadata.get("config_hash")
    agent = Agent.restored(
        artifact.documents.get(checkpoint.SPEC),
        state["agent"],
        {"binding": {PLUGINS: artifact.metadata.get(f"bound_{PLUGINS}")}},
        artifact.path,
    )
    agent.lineage = read_lineage(path).stages(steps[-1], hashed)
    source = Source(
        agent=artifact.digest,
        name=path.resolve().name,
        optimizer="kept" if keep_optimizer else "fresh",
        steps=steps[-1],
        settings=str(hashed),
    )
    return Start(path, agent, source, state if keep_optimizer else None)
