"""Loggers by the name that the command line gives them."""

from stormsail.core.errors import ChoiceError, nearest
from stormsail.monitors.loggers import MetricsLogger

NAMES = ("mlflow", "wandb")


def make_logger(name: str) -> MetricsLogger:
    """Return a logger that is set up by the environment variables of its service.

    Raises:
        ChoiceError: if there is no logger of that name.
        ConfigError: if its package is missing.
    """
    if name == "mlflow":
        from stormsail.monitors.mlflow_logger import MlflowLogger

        return MlflowLogger()
    if name == "wandb":
        from stormsail.monitors.wandb_logger import WandbLogger

        return WandbLogger()
    near = nearest(name, NAMES)
    raise ChoiceError(
        wrong=f"a logger must be {' or '.join(f'`{choice}`' for choice in NAMES)}",
        found=f"`{name}`",
        remedy=f"Did you mean `{near}`?" if near else "Leave it out, or choose one of them.",
    )
