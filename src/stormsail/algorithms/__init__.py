"""In which order: rollout, update, checkpoint, and the run around them."""

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.trainer import Progress, Run, Trainer, train

__all__ = ["Progress", "Run", "TrainConfig", "Trainer", "train"]
