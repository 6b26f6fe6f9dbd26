"""UPGD optimizers: gradient descent that protects useful weights and perturbs the others."""

from stormsail.optim.upgd.adaptive_upgd import AdaptiveUPGD
from stormsail.optim.upgd.upgd import UPGD
from stormsail.optim.upgd.upgdw import UPGDW

__all__ = ["UPGD", "UPGDW", "AdaptiveUPGD"]
