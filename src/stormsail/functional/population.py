r"""Population-based training: who copies whom, and which values a copy tries. P members.

Jaderberg et al. 2017, arXiv:1711.09846: a member that does badly *exploits* a better one, by taking
over its weights and values, and then *explores*, by changing those values. Uniform draws from
[0, 1) are arguments, so that every rule is a pure function.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp

MODES = ("max", "min")
"""Whether a large or a small fitness is the better one."""


def ranking(fitness: Float[Tensor, " P"], *, mode: str) -> Int[Tensor, " P"]:
    """Return the members from best to worst; an unknown fitness is the worst, ties go by number.

    Ours: arXiv:1711.09846 leaves both open. The member of the smaller number counts as the better
    of two equal ones, so that a rank is a function of the fitness alone.

    Args:
        fitness: of each member; NaN where it is not known.
        mode: `max` or `min`.

    Raises:
        ChoiceError: if the mode is unknown.
        ShapeError: if there is no axis of members.
    """
    check.check_choice(mode, MODES, name="mode")
    check.check_has_axis(axis="members", fitness=fitness)
    # Ascending, and torch sorts NaN behind everything else, infinities included.
    return torch.argsort(-fitness if mode == "max" else fitness, stable=True)


def truncation_count(n: int, *, ratio: Number) -> int:
    r"""Return how many members are copied over, :math:`\min(\lfloor n/2 \rfloor, \max(1, ...))`.

    .. math::
        \min(\lfloor n / 2 \rfloor, \max(1, \lfloor \rho n \rfloor))

    Ours: one from two members on, where a share rounded down would be nobody, and never more than
    half of them, so that nobody is both copied and copied over.

    Args:
        n: members.
        ratio: rho, share of the members.

    Raises:
        RangeError: if the ratio lies outside of [0, 1].
    """
    check.check_unit_interval(ratio, name="ratio", remedy="Pass a share such as 0.25.")
    return min(n // 2, max(1, math.floor(ratio * n)))


def truncation_sources(
    order: Int[Tensor, " P"], uniform: Float[Tensor, " P"], *, ratio: Number
) -> Int[Tensor, " P"]:
    """Return whom each member copies under truncation selection; itself where nobody.

    arXiv:1711.09846: members in the bottom share copy one of the top share, chosen uniformly.

    Args:
        order: members from best to worst, from `ranking`.
        uniform: one draw for each member, by its number.
        ratio: share of the members at either end, see `truncation_count`.

    Raises:
        ShapeError: if there is not one draw for each member.
        RangeError: if the ratio lies outside of [0, 1].
    """
    check.check_has_axis(axis="members", order=order)
    check.check_same_shape(order=order, uniform=uniform)
    size = order.shape[-1]
    count = truncation_count(size, ratio=ratio)
    members = torch.arange(size, device=order.device)
    place = torch.argsort(order)
    chosen = order[(uniform * count).long().clamp(max=max(count - 1, 0))]
    return torch.where(place >= size - count, chosen, members)


def tournament_sources(
    fitness: Float[Tensor, " P"], uniform: Float[Tensor, " P"], *, mode: str
) -> Int[Tensor, " P"]:
    """Return whom each member copies under binary tournaments; itself where nobody.

    arXiv:1711.09846: each member draws one opponent, once, and copies it if it is better. One of
    equal fitness is not. An unknown fitness is worse than every known one.

    Args:
        fitness: of each member; NaN where it is not known.
        uniform: one draw for each member; it chooses among the others.
        mode: `max` or `min`.

    Raises:
        ChoiceError: if the mode is unknown.
        ShapeError: if there is not one draw for each member.
    """
    check.check_choice(mode, MODES, name="mode")
    check.check_has_axis(axis="members", fitness=fitness)
    check.check_same_shape(fitness=fitness, uniform=uniform)
    size = fitness.shape[-1]
    members = torch.arange(size, device=fitness.device)
    drawn = (uniform * (size - 1)).long().clamp(max=max(size - 2, 0))
    opponent = (drawn + (drawn >= members)).clamp(max=size - 1)  # nobody meets himself
    own, other = fitness, fitness[opponent]
    better = other > own if mode == "max" else other < own
    return torch.where(better | (own.isnan() & ~other.isnan()), opponent, members)


def resampled(
    uniform: Float[Tensor, "*batch"], *, low: Number, high: Number, is_log_scale: bool
) -> Float[Tensor, "*batch"]:
    r"""Return values drawn anew between two bounds.

    :math:`a + (b - a) u`, or on a log scale :math:`a (b / a)^u`, so that every factor is equally
    likely. arXiv:1711.09846 draws from the distribution that a value began with.

    Args:
        uniform: u, draws from [0, 1).
        low: a; above 0 on a log scale.
        high: b.
        is_log_scale: whether the logarithm is uniform.

    Raises:
        RangeError: if the bounds are not in order, or not positive on a log scale.
    """
    check.check_span(low, high, is_positive=is_log_scale)
    drawn = low * (high / low) ** uniform if is_log_scale else low + (high - low) * uniform
    return clamp(drawn, low, high)


def perturbed(
    value: Float[Tensor, "*batch"],
    uniform: Float[Tensor, "*batch"],
    *,
    factor: Number,
    low: Number,
    high: Number,
) -> Float[Tensor, "*batch"]:
    """Return values times or over a factor, each with probability 1/2, clipped to their bounds.

    arXiv:1711.09846 perturbs by 1.2 or 0.8. Deviation: by the factor or its inverse, so that a
    value that goes up and down comes back to where it was.

    Args:
        value: as it is.
        uniform: draws from [0, 1); below 1/2 multiplies.
        factor: above 0.
        low: least value.
        high: largest value.

    Raises:
        ShapeError: if there is not one draw for each value.
        RangeError: if the factor is not positive, or the bounds are not in order.
    """
    check.check_same_shape(value=value, uniform=uniform)
    check.check_positive(factor, name="factor", remedy="Pass for example 1.2.")
    check.check_span(low, high)
    return clamp(torch.where(uniform < 0.5, value * factor, value / factor), low, high)


def explored(
    value: Float[Tensor, "*batch"],
    uniform: Float[Tensor, "*batch 3"],
    *,
    resample_probability: Number,
    factor: Number,
    low: Number,
    high: Number,
    is_log_scale: bool,
) -> Float[Tensor, "*batch"]:
    """Return the values that a copy tries: drawn anew with a probability, otherwise perturbed.

    The two ways of arXiv:1711.09846 in one: `perturbed` at probability 0, `resampled` at 1.

    Args:
        value: of the member that was copied.
        uniform: draws from [0, 1): which way, the new value, the direction.
        resample_probability: of drawing anew.
        factor: see `perturbed`.
        low: least value.
        high: largest value.
        is_log_scale: see `resampled`.

    Raises:
        ShapeError: if there are not three draws for each value.
        RangeError: if a number lies outside of its range.
    """
    check.check_unit_interval(
        resample_probability, name="resample_probability", remedy="Pass for example 0.25."
    )
    check.check_without_last(whole={"uniform": uniform}, part={"value": value})
    anew = resampled(uniform[..., 1], low=low, high=high, is_log_scale=is_log_scale)
    moved = perturbed(value, uniform[..., 2], factor=factor, low=low, high=high)
    return torch.where(uniform[..., 0] < resample_probability, anew.to(value.dtype), moved)


def explored_choice(
    index: Int[Tensor, "*batch"],
    uniform: Float[Tensor, "*batch 3"],
    *,
    resample_probability: Number,
    count: int,
) -> Int[Tensor, "*batch"]:
    """Return the choices that a copy tries: drawn anew with a probability, otherwise a neighbour.

    Ours: a choice moves to the one before or behind it in the list and stays at an end, as a number
    stays at its bound. There is no way from the last to the first.

    Args:
        index: place of the choice of the member that was copied.
        uniform: draws from [0, 1): which way, the new choice, the direction.
        resample_probability: of drawing anew.
        count: choices in the list.

    Raises:
        ShapeError: if there are not three draws for each choice.
        RangeError: if the probability lies outside of [0, 1], or there is no choice.
    """
    check.check_unit_interval(
        resample_probability, name="resample_probability", remedy="Pass for example 0.25."
    )
    check.check_count(count, name="count", remedy="Name one choice or more.")
    check.check_without_last(whole={"uniform": uniform}, part={"index": index})
    anew = (uniform[..., 1] * count).long().clamp(max=count - 1)
    moved = (index + torch.where(uniform[..., 2] < 0.5, 1, -1)).clamp(0, count - 1)
    return torch.where(uniform[..., 0] < resample_probability, anew, moved)


def smoothed(
    raw: Float[Tensor, " P"], before: Float[Tensor, " P"], *, beta: Number
) -> Float[Tensor, " P"]:
    r"""Return the fitness of the rounds so far, :math:`\beta f_{r-1} + (1 - \beta) f_r`.

    Ours: a member that was chosen for one evaluation would be copied for the noise in it. A member
    without a past takes the new fitness, and one whose new fitness is not known has none.

    Args:
        raw: fitness of this round; NaN where it is not known.
        before: smoothed fitness of the round before; NaN where there is none.
        beta: weight of the past.

    Raises:
        ShapeError: if the two have different shapes.
        RangeError: if beta lies outside of [0, 1).
    """
    check.check_same_shape(raw=raw, before=before)
    check.check_below_one(beta, name="beta", remedy="Pass for example 0.5.")
    return torch.where(before.isnan(), raw, beta * before + (1.0 - beta) * raw)


def limited_fitness(
    score: Float[Tensor, "*batch"], breach: Float[Tensor, "*batch"], *, mode: str
) -> Float[Tensor, "*batch"]:
    r"""Return one number by which agents under a limit are compared.

    :math:`s / (1 + |s|)` where the limit is kept, and :math:`-1 - b` where it is broken by b; with
    the signs turned for `min`. Ours: the order of the agent that a run keeps as its best. Whoever
    keeps the limit is better than whoever does not, of those who break it the nearer one is, and
    only among those who keep it the score decides.

    Args:
        score: s.
        breach: b, by how much the limit is broken, in sizes of the limit; 0 where it is kept.
        mode: whether a large or a small score is the better one.

    Raises:
        ChoiceError: if the mode is unknown.
        ShapeError: if the two have different shapes.
    """
    check.check_choice(mode, MODES, name="mode")
    check.check_same_shape(score=score, breach=breach)
    broken = -1.0 - breach if mode == "max" else 1.0 + breach
    return torch.where(breach > 0.0, broken, score / (1.0 + score.abs()))
