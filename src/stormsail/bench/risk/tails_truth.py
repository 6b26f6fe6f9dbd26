r"""Exact return distributions of `bench tails`, by their characteristic functions, in float64.

A return Z with :math:`\varphi(t) = E\,e^{itZ}` has (Gil-Pelaez 1951; the second in the same way,
from :math:`|y| = \frac2\pi \int_0^\infty (1 - \cos ty)\,t^{-2}\,dt`)

.. math::
    F(x) = \tfrac12 - \tfrac1\pi \int_0^\infty \operatorname{Im}(\varphi(t) e^{-itx}) / t \; dt,
    \qquad
    E|Z - x| = \tfrac2\pi \int_0^\infty (1 - \operatorname{Re}(\varphi(t) e^{-itx})) / t^2 \; dt.

Both are summed at the middles :math:`t_k = (k + \tfrac12)\Delta`. For one value y of Z - x the sums
are Fourier series of a square and of a triangle wave, which are sign(y) and :math:`|y|` for
:math:`|y| < 2\pi/\Delta`: so they are exact but for mass further out, and for what follows the last
node, where :math:`\varphi` has vanished. Of the second, what does not vanish is known:
:math:`\sum_k t_k^{-2} = \pi^2 / (2\Delta^2)`, hence

.. math::
    E|Z - x| = \frac\pi\Delta
        - \frac{2\Delta}\pi \sum_k \operatorname{Re}(\varphi(t_k) e^{-it_kx}) / t_k^2.

CVaR is :math:`q - E[(q - Z)^+]/\alpha` at the quantile q of level :math:`\alpha`, with
:math:`E[(q-Z)^+] = (E|Z-q| + q - EZ)/2`; there its slope in q is 0, so that an error of q hardly
matters.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from stormsail.core.errors import RangeError

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

REACH = 120.0
"""Values within this distance of each other are exact: more than any world pays."""
LAST_NODE = 400.0
"""Enough for normal noise of deviation .021 and more."""
NEGLIGIBLE = 1e-15
"""Size of a characteristic function that is taken for 0."""
QUANTILE_ERROR = 1e-10


class KnownReturns(Protocol):
    """A return distribution that is known."""

    @property
    def mean(self) -> float:
        """Expected return."""

    @property
    def spread(self) -> float:
        """Standard deviation."""

    def below(self, value: Tensor) -> Tensor:
        """Return the probability of a return of at most this, float64."""

    def quantiles(self, levels: Tensor) -> Tensor:
        """Return the quantiles at these levels, float64."""

    def cvar(self, alpha: float) -> float:
        """Return the mean of the worst share of returns."""


class _Inverted(ABC):
    """What follows from the distribution function and the expected shortfall."""

    mean: float
    spread: float

    @abstractmethod
    def _cdf(self, value: float) -> float:
        """Return the probability of a return of at most this."""

    @abstractmethod
    def _shortfall(self, value: float) -> float:
        """Return the expected shortfall below this, E[(value - return)_+]."""

    def below(self, value: Tensor) -> Tensor:
        """Return the probability of a return of at most this, float64."""
        points = value.double().flatten().tolist()
        return torch.tensor([self._cdf(x) for x in points], dtype=torch.float64).view(value.shape)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Return the quantiles at these levels, float64."""
        points = [self._quantile(level) for level in levels.double().flatten().tolist()]
        return torch.tensor(points, dtype=torch.float64).view(levels.shape)

    def cvar(self, alpha: float) -> float:
        """Return the mean of the worst share of returns."""
        value = self._quantile(alpha)
        return value - self._shortfall(value) / alpha

    def _quantile(self, level: float) -> float:
        # by Cantelli's inequality it lies between these
        low = self.mean - self.spread * math.sqrt((1.0 - level) / level) - 1e-9
        high = self.mean + self.spread * math.sqrt(level / (1.0 - level)) + 1e-9
        return float(brentq(lambda x: self._cdf(x) - level, low, high, xtol=QUANTILE_ERROR))


class Characteristic(_Inverted):
    """A distribution by its characteristic function.

    Args:
        function: of nodes [n], complex [n]; below 1e-15 before node 400, and its values must lie
            within 120 of each other.
        mean: expected return.
        spread: standard deviation.
    """

    def __init__(self, function: Callable[[Array], Complex], *, mean: float, spread: float) -> None:
        self._step = 2.0 * math.pi / REACH
        nodes: Array = (
            np.arange(round(LAST_NODE / self._step), dtype=np.float64) + 0.5
        ) * self._step
        values = function(nodes)
        count = int(np.nonzero(np.abs(values) > NEGLIGIBLE)[0].max()) + 1
        if count == len(nodes):
            raise RangeError(
                wrong=f"a characteristic function must be below {NEGLIGIBLE:g} at {LAST_NODE:g}",
                found=f"{abs(values[-1]):.1e}",
                remedy="Give every step more noise.",
            )
        self._nodes, self._values = nodes[:count], values[:count]
        self.mean, self.spread = mean, spread

    def _cdf(self, value: float) -> float:
        turned = self._values * np.exp(-1j * self._nodes * value)
        return 0.5 - self._step / math.pi * float((turned.imag / self._nodes).sum())

    def _shortfall(self, value: float) -> float:
        turned = self._values * np.exp(-1j * self._nodes * value)
        total = 2.0 * self._step / math.pi * float((turned.real / self._nodes**2).sum())
        return (math.pi / self._step - total + value - self.mean) / 2.0


class StudentSum(_Inverted):
    r"""A constant plus a sum of independent Student variables with 3 degrees of freedom, scaled.

    One of scale b has :math:`\varphi(t) = (1 + \sqrt3 b|t|) e^{-\sqrt3 b|t|}`, so the sum has
    :math:`\varphi(t) = e^{-at}\sum_j c_j t^j` for t > 0, with :math:`a = c_1 = \sqrt3 \sum b` and
    :math:`c_0 = 1`. Term by term, about the constant,

    .. math::
        F(x) = \tfrac12 + \tfrac1\pi \Big(\arctan\tfrac xa
               + \sum_{j\ge1} c_j\,\Gamma(j) \operatorname{Im}(a - ix)^{-j}\Big),

    .. math::
        E[(q - Z)^+] = q\Big(\tfrac12 + \tfrac1\pi\arctan\tfrac qa\Big) + \tfrac a\pi
               - \tfrac1\pi\sum_{j\ge2} c_j\,\Gamma(j-1) \operatorname{Re}(a - iq)^{1-j},

    where the logarithms of j = 0 and j = 1 cancel, since :math:`c_1 = a`. *Ours.*

    Args:
        scales: of the variables, each positive.
        mean: the constant.
    """

    def __init__(self, scales: Sequence[float], *, mean: float) -> None:
        rates = math.sqrt(3.0) * np.asarray(scales, dtype=np.float64)
        self._rate = float(rates.sum())
        factors = np.ones(1)
        for rate in rates:
            factors = np.convolve(factors, (1.0, rate))
        self._factors = factors
        self.mean, self.spread = mean, float(np.sqrt(np.square(rates).sum()))

    def _cdf(self, value: float) -> float:
        x = value - self.mean
        turn = 1.0 / complex(self._rate, -x)
        terms = [c * math.gamma(j) * (turn**j).imag for j, c in enumerate(self._factors) if j >= 1]
        return 0.5 + (math.atan(x / self._rate) + sum(terms)) / math.pi

    def _shortfall(self, value: float) -> float:
        q = value - self.mean
        turn = 1.0 / complex(self._rate, -q)
        terms = [
            c * math.gamma(j - 1) * (turn ** (j - 1)).real
            for j, c in enumerate(self._factors)
            if j >= 2
        ]
        share = 0.5 + math.atan(q / self._rate) / math.pi
        return q * share + (self._rate - sum(terms)) / math.pi
