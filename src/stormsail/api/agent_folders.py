"""Agents by the folder that names them: of a population, of a run, or an agent's own."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stormsail.core.errors import ArtifactError

BEST = "best"
"""Folder of a run that holds its best agent."""

POPULATION = "population.jsonl"
"""File that only the folder of a population has."""


def agent_folder(run: Path) -> Path:
    """Return the folder of the best agent of a run, or that of the agent itself.

    The run of a population is that of its best member after the last round that is over.

    Raises:
        ArtifactError: if there is no such folder, or the run has saved no agent yet.
    """
    from stormsail.modules.agent import agent_folder as own_folder

    if (run / POPULATION).is_file():
        run = _best_member(run)
    if not run.is_dir():
        raise _no_agent(run)
    folder = own_folder(run)
    if folder == run and (not any(run.iterdir()) or sorted(run.glob(f"*/{BEST}"))):
        raise _no_agent(run)
    return folder


def _no_agent(path: Path) -> "ArtifactError":
    """Return the refusal of what is no folder of an agent: missing, a file, or something else."""
    from stormsail.core.errors import ArtifactError

    remedy = "Train until the first evaluation; `validation.every_updates` says when."
    runs = sorted(part.parent for part in path.glob(f"*/{BEST}"))
    if runs:
        problem, remedy = "a folder of runs", f"Name one of them, such as {runs[0]}."
    elif path.is_dir():
        problem = "an empty folder"
    elif path.exists():
        problem, remedy = "a file", f"Name a folder, such as {path.parent}, that holds an agent."
    else:
        problem = "no such folder"
    return ArtifactError(
        "artifact-missing",
        wrong=f"{path} must be a run with an agent in `{BEST}`",
        found=problem,
        remedy=remedy,
    )


def _best_member(population: Path) -> Path:
    from stormsail.algorithms.population.population import read_population
    from stormsail.core.errors import ArtifactError

    best = read_population(population).best_folder
    if best is None:
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{population} must be a population with a best member",
            found="no fitness of any member after its last round",
            remedy="Train it until a round is over, or name the folder of a member.",
        )
    return best
