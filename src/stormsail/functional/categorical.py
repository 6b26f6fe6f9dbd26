"""Distributions on a fixed support. K atoms, ascending; `*batch` leading dimensions are free."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.functional import _checks as check


def project(
    value: Float[Tensor, "*batch"], atoms: Float[Tensor, " K"]
) -> Float[Tensor, "*batch K"]:
    r"""Return the distribution on the atoms that stands for a certain value.

    .. math::
        p_k = \Big[1 - \frac{|y - z_k|}{\Delta}\Big]_0^1, \qquad
        y = \mathrm{clamp}(value, z_0, z_{K-1})

    Bellemare et al. 2017, arXiv:1707.06887, Eq. 7, for a Dirac. Deviations: the neighbours are
    found by search, so the atoms need not be evenly spaced, and an atom hit exactly gets mass
    exactly 1 (flooring (y - z_0) / Delta loses it at both ends).

    Args:
        value: points, in the unit of the atoms; outside the support they are clamped
            (`outside_support` counts them).
        atoms: ascending support, K >= 2.

    Raises:
        ShapeError: if `atoms` is not one row of at least two.
    """
    check.check_atoms(atoms)
    check.check_floating(value=value, atoms=atoms)
    ones = torch.ones_like(value).unsqueeze(-1)
    return _scatter(ones, value.unsqueeze(-1), atoms).to(value.dtype)


def project_distribution(
    probs: Float[Tensor, "*batch M"],
    support: Float[Tensor, "*batch M"],
    atoms: Float[Tensor, " K"],
) -> Float[Tensor, "*batch K"]:
    r"""Return the distribution with mass `probs` at the points `support`, moved to the atoms.

    .. math::
        (\Pi p)_k = \sum_m p_m \Big[1 - \frac{|\mathrm{clamp}(x_m) - z_k|}{\Delta}\Big]_0^1

    Bellemare et al. 2017, arXiv:1707.06887, Eq. 7. Keeps the total mass, and the mean of what lies
    inside the support. Differentiable in `probs` and in `support`. On CUDA the sum over points that
    share an atom is deterministic only under `torch.use_deterministic_algorithms`.

    Args:
        probs: mass at each point.
        support: the points, in any order, in the unit of the atoms.
        atoms: ascending support to project on, K >= 2.

    Raises:
        ShapeError: if `probs` and `support` differ or `atoms` is not one row of at least two.
    """
    check.check_same_shape(probs=probs, support=support)
    check.check_has_axis(axis="points", probs=probs)
    check.check_atoms(atoms)
    check.check_floating(probs=probs, atoms=atoms)
    return _scatter(probs, support, atoms).to(probs.dtype)


project_law = project_distribution
"""The same function under its earlier name."""


def shift_distribution(
    probs: Float[Tensor, "*batch K"], shift: Float[Tensor, "*batch"], atoms: Float[Tensor, " K"]
) -> Float[Tensor, "*batch K"]:
    """Return the distribution of Z + shift on the same atoms; differentiable in both.

    The atoms z + shift are projected back on z with the weights of the distribution
    (arXiv:1707.06887, Eq. 7), which keeps the shape. Rebuilding the distribution from its shifted
    mean would not.

    Raises:
        ShapeError: if the shapes do not fit.
    """
    check.check_distribution(atoms, probs=probs)
    check.check_without_last(whole={"probs": probs}, part={"shift": shift})
    return _scatter(probs, atoms + shift.unsqueeze(-1), atoms).to(probs.dtype)


def cross_entropy(
    logits: Float[Tensor, "*batch K"], target: Float[Tensor, "*batch K"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`-\sum_k p_k \log \mathrm{softmax}(logits)_k`, one value per batch element.

    The sample loss of Bellemare et al. 2017, arXiv:1707.06887, Algorithm 1 (last line). The target
    distribution gets no gradient.

    Raises:
        ShapeError: if the shapes differ.
    """
    check.check_same_shape(kind="loss", logits=logits, target=target)
    check.check_has_axis(axis="atoms", logits=logits)
    return -(target.detach() * logits.log_softmax(-1)).sum(-1)


def cross_entropy_normaliser(count: int) -> float:
    """Return log K, the cross entropy of a uniform prediction; 1.0 for a single atom.

    A constant that makes losses with different K comparable. It is no bound: the cross entropy of
    a confident wrong prediction is unbounded. Ours; the C51 papers do not divide by it.
    """
    return math.log(count) if count > 1 else 1.0


def distribution_mean(
    probs: Float[Tensor, "*batch K"], atoms: Float[Tensor, " K"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_k p_k z_k` (arXiv:1707.06887, Section 4: the value of a distribution).

    Raises:
        ShapeError: if the distribution does not lie on these atoms.
    """
    check.check_distribution(atoms, probs=probs)
    return (probs * atoms).sum(-1)


def distribution_variance(
    probs: Float[Tensor, "*batch K"], atoms: Float[Tensor, " K"]
) -> Float[Tensor, "*batch"]:
    r"""Return :math:`\sum_k p_k (z_k - m)^2`, around the mean, so that it is never negative.

    Definition of the variance of a discrete distribution; no paper needed.

    Raises:
        ShapeError: if the distribution does not lie on these atoms.
    """
    mean = distribution_mean(probs, atoms)
    return (probs * (atoms - mean.unsqueeze(-1)).square()).sum(-1)


def outside_support(
    value: Float[Tensor, "*batch"], atoms: Float[Tensor, " K"]
) -> tuple[Bool[Tensor, "*batch"], Bool[Tensor, "*batch"]]:
    """Return which values lie below and which above the support, where projection clamps them.

    The clamp of arXiv:1707.06887, Eq. 7, counted: it is the only change a target may suffer.

    Raises:
        ShapeError: if `atoms` is not one row of at least two.
    """
    check.check_atoms(atoms)
    return value < atoms[0], value > atoms[-1]


def _scatter(probs: Tensor, points: Tensor, atoms: Tensor) -> Tensor:
    """Share each point's mass between its two neighbouring atoms: [*b, M] -> [*b, K]."""
    inside = torch.minimum(torch.maximum(points, atoms[0]), atoms[-1])
    # Searched among the inner atoms alone, every point has a neighbour on either side.
    lower = torch.searchsorted(atoms[1:-1].contiguous(), inside.detach().contiguous(), right=True)
    share = (inside - atoms[lower]) / atoms.diff()[lower]  # exactly 0 or 1 on an atom
    upper_mass = probs * share
    projected = upper_mass.new_zeros((*probs.shape[:-1], atoms.shape[0]))
    projected[..., :-1].scatter_add_(-1, lower, probs - upper_mass)
    projected[..., 1:].scatter_add_(-1, lower, upper_mass)
    return projected
