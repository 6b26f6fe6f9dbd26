"""Optimizers that keep learning, the scaler of noisy gradients, and the order they act in."""

from stormsail.optim.pipeline import GradientPipeline
from stormsail.optim.upgd.adaptive_upgd import AdaptiveUPGD
from stormsail.optim.upgd.upgd import UPGD
from stormsail.optim.upgd.upgdw import UPGDW
from stormsail.optim.vgs.scaler import VarianceGradientScaler

__all__ = ["UPGD", "UPGDW", "AdaptiveUPGD", "GradientPipeline", "VarianceGradientScaler"]
