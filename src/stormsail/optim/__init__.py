"""Optimizers for continual learning, the variance gradient scaler, and the gradient pipeline."""

from stormsail.optim.pipeline import GradientPipeline
from stormsail.optim.upgd import UPGD, UPGDW, AdaptiveUPGD
from stormsail.optim.vgs import VarianceGradientScaler

__all__ = ["UPGD", "UPGDW", "AdaptiveUPGD", "GradientPipeline", "VarianceGradientScaler"]
