"""Alarms over metrics, files for metrics and events, loggers.

Public names are imported on first use (PEP 562): `import stormsail.monitors` loads nothing else.
"""

from typing import TYPE_CHECKING

from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail.monitors.loggers import Ending, LoggedRun, MetricsLogger
    from stormsail.monitors.mlflow_logger import MlflowLogger
    from stormsail.monitors.wandb_logger import WandbLogger

__all__ = ["Ending", "LoggedRun", "MetricsLogger", "MlflowLogger", "WandbLogger"]

_EXPORTS = {
    "loggers": ("Ending", "LoggedRun", "MetricsLogger"),
    "mlflow_logger": ("MlflowLogger",),
    "wandb_logger": ("WandbLogger",),
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
