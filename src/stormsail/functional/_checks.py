"""Refusals shared by the formulas: shapes, flags, ranges and names, never values.

Every check reads only what Python knows without asking the device, so that it costs nothing inside
a captured graph and disappears while `torch.compile` traces.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stormsail.core.arguments import wrong_type
from stormsail.core.errors import ChoiceError, DtypeError, RangeError, ShapeError, nearest

_NUMBERS = (int, float, Tensor, torch.SymInt, torch.SymFloat)
_NO_BROADCAST = "Reduce or expand one of them before the call; this {kind} never broadcasts."


def check_tensors(**tensors: object) -> None:
    """Refuse what is no tensor, such as a list or an array."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise wrong_type(
                tensor, name=name, must="a tensor", remedy="Convert it with `torch.as_tensor`."
            )


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def check_same_shape(*, kind: str = "function", **tensors: Tensor) -> None:
    """Refuse tensors whose shape differs from that of the first."""
    check_tensors(**tensors)
    names = list(tensors)
    first = tensors[names[0]]
    for name in names[1:]:
        if tensors[name].shape != first.shape:
            raise ShapeError(
                wrong=f"`{names[0]}` and `{name}` must have the same shape",
                found=f"{names[0]} {_shape(first)} and {name} {_shape(tensors[name])}",
                remedy=_NO_BROADCAST.format(kind=kind),
            )


def check_same_leading(*, kind: str = "function", **tensors: Tensor) -> None:
    """Refuse tensors that differ in any dimension but the last."""
    check_tensors(**tensors)
    names = list(tensors)
    first = tensors[names[0]]
    for name in names[1:]:
        other = tensors[name]
        if 0 in (first.ndim, other.ndim) or other.shape[:-1] != first.shape[:-1]:
            raise ShapeError(
                wrong=f"`{names[0]}` and `{name}` must share every dimension but the last",
                found=f"{names[0]} {_shape(first)} and {name} {_shape(other)}",
                remedy=_NO_BROADCAST.format(kind=kind),
            )


def check_without_last(*, whole: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    """Refuse a `part` that is not shaped like `whole` without its last dimension."""
    (whole_name, big), (part_name, small) = *whole.items(), *part.items()
    if big.ndim == 0 or small.shape != big.shape[:-1]:
        raise ShapeError(
            wrong=f"`{part_name}` must have the shape of `{whole_name}` without its last dimension",
            found=f"{part_name} {_shape(small)} and {whole_name} {_shape(big)}",
            remedy=_NO_BROADCAST.format(kind="function"),
        )


def check_counts(logits: Tensor, *, counts: Sequence[int]) -> None:
    """Refuse numbers of classes that do not add up to the last dimension."""
    if not counts or sum(counts) != logits.shape[-1]:
        raise ShapeError(
            wrong="`counts` must add up to the last dimension of `logits`",
            found=f"logits {_shape(logits)} and counts {tuple(counts)}",
            remedy="Pass the number of classes of each choice, in order.",
        )


def check_choices(logits: Tensor, action: Tensor, *, counts: Sequence[int]) -> None:
    """Refuse actions that do not hold one class for each choice."""
    if action.shape != (*logits.shape[:-1], len(counts)):
        raise ShapeError(
            wrong=f"`action` must be shaped like `logits` with {len(counts)} as last dimension",
            found=f"action {_shape(action)} and logits {_shape(logits)}",
            remedy="Pass one class for each choice of every decision.",
        )


def check_samples(*, sample: Tensor, like: dict[str, Tensor], name: str) -> None:
    """Refuse samples that are not shaped like one tensor with a sample axis in front."""
    ((like_name, single),) = like.items()
    if sample.ndim == 0 or sample.shape[0] == 0 or sample.shape[1:] != single.shape:
        raise ShapeError(
            wrong=f"`{name}` must have the shape of `{like_name}` behind a sample axis",
            found=f"{name} {_shape(sample)} and {like_name} {_shape(single)}",
            remedy="Stack the samples along the first dimension.",
        )


def check_rows(**tensors: Tensor) -> None:
    """Refuse a tensor without a first axis of samples, or with an empty one."""
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or tensor.shape[0] == 0:  # samples of 0 features are samples
            raise ShapeError(
                wrong=f"`{name}` must hold at least one sample along its first dimension",
                found=f"{name} {_shape(tensor)}",
                remedy="Stack the samples along the first dimension.",
            )


def check_row_weight(*, x: Tensor, weight: Tensor) -> None:
    """Refuse weights that are not one per row."""
    if tuple(weight.shape) != (x.shape[0],):
        raise ShapeError(
            wrong=f"`weight` must have one entry for each of the {x.shape[0]} rows of `x`",
            found=f"weight {_shape(weight)}",
            remedy="Pass one weight per sample.",
        )


def check_trailing(*, x: Tensor, mean: Tensor) -> None:
    """Refuse statistics that do not describe the trailing axes."""
    if mean.ndim > x.ndim or x.shape[x.ndim - mean.ndim :] != mean.shape:
        raise ShapeError(
            wrong="`mean` must have the shape of the trailing dimensions of `x`",
            found=f"mean {_shape(mean)} and x {_shape(x)}",
            remedy="Pass the statistics of one observation.",
        )


def check_points(*, y: Tensor, x: Tensor | None) -> None:
    """Refuse fewer than two points, or abscissae that are not one per point."""
    if y.ndim == 0 or y.shape[-1] < 2:
        raise ShapeError(
            wrong="`y` must have at least 2 points in its last dimension",
            found=f"y {_shape(y)}",
            remedy="A slope needs two points.",
        )
    if x is not None and tuple(x.shape) != (y.shape[-1],):
        raise ShapeError(
            wrong=f"`x` must have one entry for each of the {y.shape[-1]} points",
            found=f"x {_shape(x)}",
            remedy="Pass one row of abscissae.",
        )


def check_layer(*, weight: Tensor, bias: Tensor) -> None:
    """Refuse a layer whose bias has not one entry per output."""
    if weight.ndim != 2 or tuple(bias.shape) != (weight.shape[0],):
        raise ShapeError(
            wrong="`weight` and `bias` must be [outputs, inputs] and [outputs]",
            found=f"weight {_shape(weight)} and bias {_shape(bias)}",
            remedy="Pass the parameters of one linear layer.",
        )


def check_recurrence(
    *, gates: Tensor, weight: Tensor, hidden: Tensor, reset: Tensor, initial: Tensor, parts: int
) -> None:
    """Refuse sizes of a recurrent layer that do not fit each other."""
    width = weight.shape[-1] if weight.ndim else 0
    fits = (
        gates.ndim == 3
        and gates.shape[0] > 0
        and weight.shape == (parts * width, width)
        and gates.shape[-1] == parts * width
        and hidden.shape == (gates.shape[1], width)
        and reset.shape == gates.shape[:2]
        and initial.shape[1:] == (width,)
    )
    if not fits:
        raise ShapeError(
            wrong=f"a layer of width H must have gates [T, B, {parts} H], weight [{parts} H, H], "
            "a state [B, H], reset [T, B] and an initial state [H]",
            found=f"gates {_shape(gates)}, weight {_shape(weight)}, state {_shape(hidden)}, "
            f"reset {_shape(reset)} and initial state {_shape(initial[0])}",
            remedy="Compute the gates of all rows, one or more, before the call.",
        )


def check_features(*, obs: Tensor, mask: Tensor) -> None:
    """Refuse a mask that has not one entry per feature."""
    if obs.ndim == 0 or tuple(mask.shape) != (obs.shape[-1],):
        raise ShapeError(
            wrong="`mask` must have one entry for each feature of `obs`",
            found=f"mask {_shape(mask)} and obs {_shape(obs)}",
            remedy="Pass one flag per feature.",
        )


def check_bound(value: float | Tensor, *, obs: Tensor, name: str) -> None:
    """Refuse a bound that is neither one number for all features nor one for each, or NaN."""
    if isinstance(value, Tensor) and value.ndim and tuple(value.shape) != (obs.shape[-1],):
        raise ShapeError(
            wrong=f"`{name}` must be a number, or have one entry for each feature of `obs`",
            found=f"{name} {_shape(value)} and obs {_shape(obs)}",
            remedy="Pass one bound per feature; infinity where there is none.",
        )
    if not (isinstance(value, Tensor) and value.ndim):
        check_known(**{name: value})


def check_levels(tau: Tensor, *, count: int) -> None:
    """Refuse levels that are not one row of `count` entries."""
    if tuple(tau.shape) != (count,):
        raise ShapeError(
            wrong=f"`tau` must have one entry for each of the {count} quantiles",
            found=f"tau {_shape(tau)}",
            remedy=f"Use `midpoints({count})`.",
        )


def check_weight(weight: Tensor | None, *, count: int, name: str = "weight") -> None:
    """Refuse weights of atoms that are not one row of `count` entries; None weighs all alike."""
    if weight is not None and tuple(weight.shape) != (count,):
        raise ShapeError(
            wrong=f"`{name}` must have one entry for each of the {count} atoms",
            found=f"{name} {_shape(weight)}",
            remedy="Pass the share of the mass that each atom stands for, or None for equal ones.",
        )


def check_atoms(atoms: Tensor) -> None:
    """Refuse a support that is not one row of at least two atoms."""
    if atoms.ndim != 1 or atoms.shape[0] < 2:
        raise ShapeError(
            wrong="`atoms` must be one-dimensional with at least 2 entries",
            found=f"atoms {_shape(atoms)}",
            remedy="Pass the support as one ascending row.",
        )


def check_distribution(atoms: Tensor, **probs: Tensor) -> None:
    """Refuse probabilities whose last dimension is not the support."""
    check_atoms(atoms)
    count = atoms.shape[0]
    for name, values in probs.items():
        if values.ndim == 0 or values.shape[-1] != count:
            raise ShapeError(
                wrong=(
                    f"`{name}` must have one entry for each of the {count} atoms "
                    "in its last dimension"
                ),
                found=f"{name} {_shape(values)}",
                remedy="Project the distribution on these atoms first.",
            )


def check_has_axis(*, axis: str, **tensors: Tensor) -> None:
    """Refuse a tensor without, or with an empty, last dimension."""
    check_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or tensor.shape[-1] == 0:
            raise ShapeError(
                wrong=f"`{name}` must have a last dimension of at least 1 for its {axis}",
                found=f"{name} {_shape(tensor)}",
                remedy=f"Stack the {axis} along the last dimension.",
            )


def check_critics(**critics: Tensor) -> None:
    """Refuse distributions without a critic axis before their last dimension."""
    check_tensors(**critics)
    for name, values in critics.items():
        if values.ndim < 2 or 0 in values.shape[-2:]:
            raise ShapeError(
                wrong=f"`{name}` must end in the dimensions [critics, atoms], both at least 1",
                found=f"{name} {_shape(values)}",
                remedy="Stack the critics along the second-last dimension.",
            )


def check_flags(**flags: Tensor) -> None:
    """Refuse masks that are not boolean."""
    check_tensors(**flags)
    for name, flag in flags.items():
        if flag.dtype != torch.bool:
            raise DtypeError(
                wrong=f"`{name}` must be a boolean tensor",
                found=f"{flag.dtype}",
                remedy="Convert it with `.bool()`.",
            )


def check_time_batch(**tensors: Tensor) -> None:
    """Refuse anything that is not [T, B] with at least one row."""
    check_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape[0] == 0:
            raise ShapeError(
                wrong=f"`{name}` must have the dimensions [T, B] with at least one time step",
                found=f"{name} {_shape(tensor)}",
                remedy="Put time first and environments second.",
            )
        check_floating(**{name: tensor})


def check_floating(**tensors: Tensor) -> None:
    """Refuse whole numbers: a result in their dtype would be cut to whole numbers too."""
    check_tensors(**tensors)
    for name, tensor in tensors.items():
        if not tensor.dtype.is_floating_point:
            raise DtypeError(
                wrong=f"`{name}` must be a floating-point tensor",
                found=f"{tensor.dtype}",
                remedy="Convert it with `.float()` or `.double()`.",
            )


def check_scalar(value: int | float | Tensor, *, name: str) -> None:
    """Refuse a tensor in the place of a scalar if it has any dimension: it would broadcast."""
    given: object = value
    if isinstance(given, type) or not (isinstance(given, _NUMBERS) or hasattr(given, "__float__")):
        must = "a number or a tensor without dimensions"
        raise wrong_type(given, name=name, must=must, remedy="Pass one number for the whole call.")
    if getattr(value, "ndim", 0):
        raise ShapeError(
            wrong=f"`{name}` must be a number or a tensor without dimensions",
            found=f"{name} {tuple(getattr(value, 'shape', ()))}",
            remedy="Pass one value for the whole call; this function never broadcasts.",
        )


def check_known(**values: float | Tensor) -> None:
    """Refuse NaN where any other number will do."""
    for name, value in values.items():
        check_scalar(value, name=name)
        if not isinstance(value, Tensor) and value != value:
            raise _refuse_range(name, value, "be a number", "Pass the statistic itself.")


def _refuse_range(name: str, value: object, wrong: str, remedy: str) -> RangeError:
    return RangeError(wrong=f"`{name}` must {wrong}", found=repr(value), remedy=remedy)


def check_unit_interval(value: float | Tensor, *, name: str, remedy: str) -> None:
    """Refuse a Python number outside [0, 1]; NaN fails the comparison and is refused too."""
    check_scalar(value, name=name)
    if not isinstance(value, Tensor) and not 0.0 <= value <= 1.0:
        raise _refuse_range(name, value, "lie in [0, 1]", remedy)


def check_below_one(value: float | Tensor, *, name: str, remedy: str) -> None:
    """Refuse a number outside [0, 1)."""
    check_scalar(value, name=name)
    if not isinstance(value, Tensor) and not 0.0 <= value < 1.0:
        raise _refuse_range(name, value, "lie in [0, 1)", remedy)


def check_at_least_zero(value: int | float | Tensor, *, name: str, remedy: str) -> None:
    """Refuse a negative Python number or NaN."""
    check_scalar(value, name=name)
    if not isinstance(value, Tensor) and not value >= 0.0:
        raise _refuse_range(name, value, "be at least 0", remedy)


def check_positive(value: float | Tensor, *, name: str, remedy: str) -> None:
    """Refuse a Python number that is zero, negative or NaN."""
    check_scalar(value, name=name)
    if not isinstance(value, Tensor) and not value > 0.0:
        raise _refuse_range(name, value, "be greater than 0", remedy)


def check_gamma(gamma: float | Tensor) -> None:
    """Refuse a discount outside [0, 1]."""
    check_unit_interval(gamma, name="gamma", remedy="Pass a discount between 0 and 1.")


def check_lam(lam: float | Tensor) -> None:
    """Refuse a trace decay outside [0, 1]."""
    check_unit_interval(lam, name="lam", remedy="Pass a trace decay between 0 and 1.")


def check_alpha(alpha: float | Tensor) -> None:
    """Refuse a tail share outside (0, 1]."""
    check_scalar(alpha, name="alpha")
    if not isinstance(alpha, Tensor) and not 0.0 < alpha <= 1.0:
        remedy = "Pass the tail share as a fraction, for example 0.05."
        raise _refuse_range("alpha", alpha, "lie in (0, 1]", remedy)


def check_kappa(kappa: float | Tensor) -> None:
    """Refuse a negative Huber threshold."""
    remedy = "Use 0 for the pinball loss or a small threshold such as 0.02."
    check_at_least_zero(kappa, name="kappa", remedy=remedy)
    if not isinstance(kappa, Tensor) and kappa == math.inf:
        raise _refuse_range("kappa", kappa, "be finite", remedy)


def check_clip(clip: float | Tensor) -> None:
    """Refuse a ratio band without width."""
    remedy = "Pass the half-width of the ratio band, for example 0.2."
    check_positive(clip, name="clip", remedy=remedy)


def check_epsilon_ball(epsilon: float | Tensor) -> None:
    """Refuse a ball with a negative radius."""
    remedy = "Pass the radius of the ball in the unit of the observations."
    check_at_least_zero(epsilon, name="epsilon", remedy=remedy)


def check_count(value: int, *, name: str, remedy: str) -> None:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, bool | Tensor) or not hasattr(value, "__index__") or value < 1:
        raise _refuse_range(name, value, "be a whole number of at least 1", remedy)


def check_span(low: float | Tensor, high: float | Tensor, *, is_positive: bool = False) -> None:
    """Refuse bounds that are not in order, or not both positive where they must be."""
    check_scalar(low, name="low")
    check_scalar(high, name="high")
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return
    if not low <= high or (is_positive and not low > 0.0):
        raise RangeError(
            wrong=f"`low` must be at most `high`{' and above 0' * is_positive}",
            found=f"{low!r} and {high!r}",
            remedy="Pass the smallest and the largest value.",
        )


def check_steps(steps: int) -> None:
    """Refuse a window without a step."""
    check_count(steps, name="steps", remedy="Use 1 for the one-step target.")


def check_std(**stds: float | Tensor) -> None:
    """Refuse a standard deviation that nothing can be divided by."""
    for name, std in stds.items():
        remedy = "Floor the standard deviation with `effective_std` first."
        check_positive(std, name=name, remedy=remedy)
        if not isinstance(std, Tensor) and std == math.inf:
            raise _refuse_range(name, std, "be finite", "Pass the statistic itself.")


def check_choice(choice: str, choices: Sequence[str], *, name: str) -> None:
    """Refuse an unknown name and suggest the nearest."""
    if choice not in choices:
        near = nearest(str(choice), choices)
        raise ChoiceError(
            wrong=f"`{name}` must be one of {', '.join(f'`{known}`' for known in choices)}",
            found=f"`{choice}`",
            remedy="Choose one of those names." if near is None else f"Did you mean `{near}`?",
        )
