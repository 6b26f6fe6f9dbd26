"""Optimizers that keep learning, the scaler of noisy gradients, and the order they act in."""

from stormsail.optim.adaptive_upgd import AdaptiveUPGD
from stormsail.optim.pipeline import GradientPipeline
from stormsail.optim.upgd import UPGD
from stormsail.optim.upgdw import UPGDW
from stormsail.optim.vgs import VarianceGradientScaler

__all__ = ["UPGD", "UPGDW", "AdaptiveUPGD", "GradientPipeline", "VarianceGradientScaler"]
