"""Density and tail of a standard Gaussian or Student score.

From SciPy's special functions: its `stats` takes longer to import than a world to draw.
"""

import math

import numpy as np
from scipy import special

from stormsail.market.synthetic.world import Array


def density(x: Array, degrees: float | None) -> Array:
    """Return the density at x; Gaussian where `degrees` is None."""
    if degrees is None:
        return np.asarray(np.exp(-(x**2) / 2.0) / math.sqrt(2.0 * math.pi))
    half = degrees / 2.0
    # Γ(half + ½)/Γ(half) over √(π·degrees), without the cancellation of two large logarithms
    level = float(special.poch(half, 0.5)) / math.sqrt(math.pi * degrees)
    return np.asarray(level * np.exp(-(half + 0.5) * np.log1p(x**2 / degrees)))


def upper_tail(x: float, degrees: float | None) -> float:
    """Return the probability of a score above x."""
    return float(special.ndtr(-x) if degrees is None else special.stdtr(degrees, -x))
