"""Variance gradient scaler (VGS): shortens the steps of noisy gradients."""

from stormsail.optim.vgs.scaler import VarianceGradientScaler

__all__ = ["VarianceGradientScaler"]
