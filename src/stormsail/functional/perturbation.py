"""Perturbed observations: balls, steps, schedules. F features along the last axis."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stormsail.functional import _checks as check
from stormsail.functional._numbers import Number, clamp

NORMS = ("linf", "l2")
SCHEDULES = ("constant", "linear", "cosine")
LANGEVIN_BETA = 1e-5
"""beta of `langevin_gradient`, as in the code of Zhang et al."""


def project_linf(delta: Float[Tensor, "*batch F"], *, epsilon: Number) -> Tensor:
    r"""Return the nearest point of the box :math:`|\delta_f| \le \epsilon`.

    The projection of Madry et al. 2018, arXiv:1706.06083, Section 2.1, for the l-infinity ball.

    Raises:
        RangeError: if `epsilon` is a negative number.
        ShapeError: if there is no feature axis.
    """
    check.check_epsilon_ball(epsilon)
    check.check_has_axis(axis="features", delta=delta)
    return clamp(delta, -epsilon, epsilon)


def project_l2(delta: Float[Tensor, "*batch F"], *, epsilon: Number) -> Tensor:
    r"""Return the nearest point of the ball :math:`\|\delta\|_2 \le \epsilon`, per observation.

    arXiv:1706.06083, Section 2.1, for the l2 ball. Deviation: what is projected is shrunk by eight
    units in the last place more, so that rounding cannot leave it outside.

    Raises:
        RangeError: if `epsilon` is a negative number.
        ShapeError: if there is no feature axis.
    """
    check.check_epsilon_ball(epsilon)
    check.check_has_axis(axis="features", delta=delta)
    norm = _norm(delta)
    outside = norm > epsilon
    shrink = epsilon * (1.0 - 8.0 * torch.finfo(delta.dtype).eps) / torch.where(outside, norm, 1.0)
    return torch.where(outside, (delta * shrink).to(delta.dtype), delta)


def random_start(
    normal: Float[Tensor, "*batch F"],
    uniform: Float[Tensor, "*batch"],
    *,
    epsilon: Number,
    norm: str,
) -> Float[Tensor, "*batch F"]:
    r"""Return a point of the ball, uniformly distributed if the draws are what they say.

    linf: each coordinate is :math:`\epsilon\,(2\Phi(z) - 1)`, a uniform made from its normal draw;
    l2: :math:`\epsilon\, u^{1/F} z / \|z\|`, the direction after Muller 1959 (CACM 2(4):19-20). The
    gradient of a divergence between a policy and itself is exactly zero, so an attack on it must
    not start at zero (Zhang et al. 2020, arXiv:2003.08938, Section 3.2). The draws are arguments,
    so that the function is pure and can be captured.

    Args:
        normal: z, independent standard normal draws, one per feature.
        uniform: u, independent draws from [0, 1), one per observation; only l2 needs them.
        epsilon: radius, in the unit of the observations; at least 0.
        norm: `linf` or `l2`.

    Raises:
        ChoiceError: if the norm is unknown.
        ShapeError: if `uniform` is not shaped like `normal` without the last dimension.
        RangeError: if `epsilon` is a negative number.
    """
    check.check_choice(norm, NORMS, name="norm")
    check.check_epsilon_ball(epsilon)
    check.check_has_axis(axis="features", normal=normal)
    check.check_without_last(whole={"normal": normal}, part={"uniform": uniform})
    if norm == "linf":
        return epsilon * torch.erf(normal / math.sqrt(2.0))
    length = epsilon * uniform.unsqueeze(-1) ** (1.0 / normal.shape[-1])
    return project_l2(length * _unit(normal), epsilon=epsilon)


def fgsm(gradient: Float[Tensor, "*batch F"], *, epsilon: Number) -> Tensor:
    r"""Return :math:`\epsilon\,sign(g)`, the worst l-infinity perturbation of a linear loss.

    Goodfellow et al. 2015, arXiv:1412.6572, Section 4.

    Raises:
        RangeError: if `epsilon` is a negative number.
    """
    check.check_epsilon_ball(epsilon)
    return epsilon * gradient.sign()


def pgd_step(
    delta: Float[Tensor, "*batch F"],
    gradient: Float[Tensor, "*batch F"],
    *,
    step: Number,
    epsilon: Number,
    norm: str,
) -> Float[Tensor, "*batch F"]:
    r"""Return the perturbation after one step of projected gradient *ascent*.

    .. math::
        \delta' = \Pi_\epsilon(\delta + \eta\,sign(g)) \quad\text{or}\quad
        \Pi_\epsilon(\delta + \eta\,g / \|g\|_2)

    Madry et al. 2018, arXiv:1706.06083, Section 2.1. A zero gradient moves nothing.

    Args:
        delta: perturbation so far.
        gradient: of the loss that is to grow, with respect to the observation.
        step: eta, length of the step; at least 0.
        epsilon: radius of the ball; at least 0.
        norm: `linf` or `l2`.

    Raises:
        ChoiceError: if the norm is unknown.
        ShapeError: if the shapes differ.
        RangeError: if `step` or `epsilon` is a negative number.
    """
    check.check_choice(norm, NORMS, name="norm")
    check.check_same_shape(delta=delta, gradient=gradient)
    check.check_at_least_zero(step, name="step", remedy="Pass the length of one ascent step.")
    if norm == "linf":
        return project_linf(delta + step * gradient.sign(), epsilon=epsilon)
    return project_l2(delta + step * _unit(gradient), epsilon=epsilon)


def langevin_gradient(
    gradient: Float[Tensor, "*batch F"],
    noise: Float[Tensor, "*batch F"],
    *,
    step: Number,
    taken: int,
) -> Float[Tensor, "*batch F"]:
    r"""Return the gradient with the noise of stochastic gradient Langevin dynamics (SGLD).

    .. math::
        g + \frac{\sqrt{2 \eta \beta}}{k + 2}\, z, \qquad \beta = 10^{-5}

    As the code published with Zhang et al. 2020, arXiv:2003.08938 (github.com/huanzhang12/SA_PPO,
    `get_state_kl_bound_sgld`) has it; `pgd_step` takes the step. The noise shrinks from step to
    step, and leads away from a point where the gradient is 0. Deviation of callers: there the
    gradient is that of a mean over the batch, so that its size against the noise depends on how
    many samples there are.

    Args:
        gradient: g.
        noise: z, independent standard normal draws.
        step: eta, length of the ascent step; at least 0.
        taken: k, steps taken before this one; at least 0.

    Raises:
        ShapeError: if the shapes differ.
        RangeError: if `step` or `taken` is a negative number.
    """
    check.check_same_shape(gradient=gradient, noise=noise)
    check.check_at_least_zero(step, name="step", remedy="Pass the length of one ascent step.")
    check.check_at_least_zero(taken, name="taken", remedy="Pass 0 at the first step.")
    spread = (2.0 * step * LANGEVIN_BETA) ** 0.5 / (taken + 2)
    return gradient + spread * noise


def perturbation_size(delta: Float[Tensor, "*batch F"], *, norm: str) -> Float[Tensor, "*batch"]:
    r"""Return the size of each perturbation: :math:`\max_f |\delta_f|` or :math:`\|\delta\|_2`.

    The norms of the balls of Madry et al. 2018, arXiv:1706.06083, Section 2.1.

    Raises:
        ChoiceError: if the norm is unknown.
        ShapeError: if there is no feature axis.
    """
    check.check_choice(norm, NORMS, name="norm")
    check.check_has_axis(axis="features", delta=delta)
    return delta.abs().amax(-1) if norm == "linf" else _norm(delta).squeeze(-1).to(delta.dtype)


def apply_mask(
    obs: Float[Tensor, "*batch F"],
    delta: Float[Tensor, "*batch F"],
    mask: Bool[Tensor, " F"],
    *,
    low: Number | None = None,
    high: Number | None = None,
) -> Float[Tensor, "*batch F"]:
    """Return the observation with the masked features perturbed and all others untouched.

    An adversary may forge the market, never the account, the clock or a validity flag. The bounds
    stop a perturbation, they do not pull in a feature that lay beyond them: no perturbation is no
    change, bit for bit. Ours.

    Args:
        obs: what was observed.
        delta: its perturbation.
        mask: features that are perturbed.
        low: least value, of all features or of each, [F]; None and -infinity bound nothing.
        high: largest value, likewise.

    Raises:
        ShapeError: if the shapes do not fit.
        DtypeError: if the mask is not boolean.
        RangeError: if a bound is NaN.
    """
    check.check_same_shape(obs=obs, delta=delta)
    check.check_features(obs=obs, mask=mask)
    check.check_flags(mask=mask)
    moved = obs + delta
    if low is not None:
        check.check_bound(low, obs=obs, name="low")
        moved = torch.maximum(moved, clamp(obs, high=low))  # an outlier may stay where it was
    if high is not None:
        check.check_bound(high, obs=obs, name="high")
        moved = torch.minimum(moved, clamp(obs, low=high))
    return torch.where(mask, moved, obs)


def epsilon_at(progress: Number, *, initial: Number, final: Number, schedule: str) -> Number:
    r"""Return the radius at a share of the training, from nothing but its arguments.

    * `constant`: initial
    * `linear`: :math:`\epsilon_0 + (\epsilon_1 - \epsilon_0) p`
    * `cosine`: :math:`\epsilon_1 + (\epsilon_0 - \epsilon_1)(1 + \cos \pi p) / 2`, Loshchilov &
      Hutter 2017, arXiv:1608.03983, Eq. 5, without restarts

    Stateless on purpose: writing the result back as the next initial value compounds the decay.

    Args:
        progress: p, clamped to [0, 1]; a number gives a number, a tensor a tensor.
        initial: radius at the start; at least 0.
        final: radius at the end; at least 0.
        schedule: one of the three above.

    Raises:
        ChoiceError: if the schedule is unknown.
        RangeError: if a radius is a negative number.
    """
    check.check_choice(schedule, SCHEDULES, name="schedule")
    for name, value in (("initial", initial), ("final", final)):
        check.check_at_least_zero(value, name=name, remedy="Pass a radius of at least 0.")
    check.check_known(progress=progress)
    share: Number
    if isinstance(progress, Tensor):
        share = progress.clamp(0.0, 1.0)
    else:
        share = min(max(progress, 0.0), 1.0)
    if schedule == "constant":
        return initial + 0.0 * share
    if schedule == "linear":
        return initial + (final - initial) * share
    turn = (math.pi * share).cos() if isinstance(share, Tensor) else math.cos(math.pi * share)
    return final + (initial - final) * (1.0 + turn) / 2.0


def ramp(*, update: int, updates: int) -> float:
    r"""Return :math:`\min(k / K, 1)`, the share of the radius in update k of K of a warm-up.

    The radius grows from 0, as in the training of Zhang et al. 2020, arXiv:2003.08938: a policy
    that knows nothing yet is not pulled towards one that ignores what it sees.

    Args:
        update: k, updates done; at least 0.
        updates: K; at least 0.

    Raises:
        RangeError: if one of them is negative.
    """
    for name, value in (("update", update), ("updates", updates)):
        check.check_at_least_zero(value, name=name, remedy="Pass a number of updates.")
    return 1.0 if update >= updates else update / updates


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
    return norm  # its slope at 0 is 0, where that of a square root is not


def _unit(x: Tensor) -> Tensor:
    """Return x / ||x||, and 0 for x = 0."""
    norm = _norm(x)
    return (x / torch.where(norm > 0, norm, 1.0)).to(x.dtype)
