"""Agents that a command line names: the best one of a run, or an agent's own folder."""

from pathlib import Path

BEST = "best"
"""Folder of a run that holds its best agent."""


def agent_folder(run: Path) -> Path:
    """Return the folder of the best agent of a run, or that of the agent itself.

    Raises:
        ArtifactError: if there is no such folder, or the run has saved no agent yet.
    """
    from stormsail.core.errors import ArtifactError

    best = run / BEST
    if best.is_dir():
        return best
    if (run / "checkpoints").is_dir() or (run / "config.toml").is_file() or not run.is_dir():
        raise ArtifactError(
            "artifact-missing",
            wrong=f"{run} must be a run with an agent in `{BEST}`",
            found="a run that has saved none yet" if run.is_dir() else "no such folder",
            remedy="Train until the first evaluation; `validation.every_updates` says when.",
        )
    return run
