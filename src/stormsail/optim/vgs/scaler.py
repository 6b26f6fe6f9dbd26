"""Variance gradient scaler: shortens the steps of parameters whose gradient is mostly noise."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from stormsail.core.errors import ArgumentError, ArtifactError, RangeError, ShapeError
from stormsail.functional import _checks as check
from stormsail.functional.optim import gradient_noise
from stormsail.optim import tensor_lists
from stormsail.optim.parameters import NamedParameters, Parameters
from stormsail.optim.vgs.estimators import PERCENTILE, STATISTICS, Estimator, Noise
from stormsail.optim.vgs.step_scale import step_scale_of

VERSION = 4
"""Of the state. 1 to 3 are the versions of the scaler's history, which measured something else."""

LARGEST = {torch.float32: 1e15, torch.float64: 1e150}
"""Absolute value of an element above which a gradient counts as not finite: the sum of squares of a
tensor would not fit the dtype of the statistics."""

SCOPES = ("per_tensor", "global")
REFERENCES = ("absolute", "median")
APPLY_TO = ("auto", "grad", "update")

SLOWNESS = 10.0
"""How many times longer than that of the statistics the memory of the median is."""

AT_FLOOR = 1.01
"""A factor of up to so many times the smallest counts as the smallest."""


class VarianceGradientScaler:
    r"""Measure the noise of each tensor's gradient and shrink its steps accordingly.

    For each tensor, over the gradients of its own steps with a moving average of decay beta:
    noise :math:`\sigma^2` (temporal variance, mean over elements), signal :math:`S^2` (square of
    the mean gradient, mean over elements), both corrected for the average's own bias, and

    .. math::
        NSR = \sigma^2 / (S^2 + \epsilon_{rel}\,\hat s), \qquad
        c = \max\big(c_{min},\ 1 / (1 + \alpha \min(NSR, cap))\big) \le 1.

    With alpha = 1 and no bound, c is the factor that brings a noisy gradient nearest to the true
    one; the defaults are milder. Ours; the formulas are in `functional.gradient_noise`, the
    alternatives and what each of them really measures in the statistics' own classes.

    That measures against a fixed level: gradients of reinforcement learning have an NSR of 30 to
    1000, where the defaults give every tensor the smallest factor, always. `reference="median"`
    measures against the usual noise of the tensor itself,

    .. math::
        \tilde v \leftarrow \tilde v\, e^{a\,\mathrm{sign}(\sigma^2 - \tilde v)}, \qquad
        c = \max\big(c_{min},\ 1 / (1 + \alpha \min(\max(\sigma^2 / \tilde v - 1, 0), cap))\big),

    with a the gain of a memory ten times as long as beta's, (1 - beta) / 10 in the end. It begins
    with the variance at the end of the warm-up: in the first steps of a network variances grow by
    orders of magnitude, and a median of those would call all that follows a burst. A steady noise
    leaves c near 1, whatever its level; a burst shortens the steps of that tensor, until it is over
    or the median has risen to it, later on by at most a factor of e in 10 / (1 - beta) steps. The
    variance and not NSR is compared: where the signal is too small to be measured, `eps_rel` holds
    NSR near 1 / eps_rel however much the noise grows, and NSR also rises where a run converges. A
    gradient whose unit changes during the run counts as a burst, for as long.

    Two lines in a training loop::

        scaler = VarianceGradientScaler(model.named_parameters(), optimizer=optimizer)
        ...
        loss.backward()
        scaler.step()       # before any clipping: it must see the raw gradient
        optimizer.step()

    Where c acts (`apply_to`): `grad` multiplies `.grad`; `update` leaves `.grad` alone and
    multiplies the change that the next `optimizer.step()` makes. `auto` takes `update` unless the
    optimizer is plain descent (`torch.optim.SGD`, `ASGD`) or none is given: an Adam-type step does
    not depend on a constant factor of the gradient. The optimizers of this package take c as a
    step scale, which leaves weight decay alone. For others the step is shortened afterwards,
    p <- p0 + c (p - p0), at the cost of one copy of the parameters; there decoupled weight decay is
    part of the step and shrinks with it.

    A tensor without a gradient is skipped, and so is one whose gradient is not finite (or so large
    that its square is not); the latter is counted. Nothing here waits for the device. The state is
    float32 for gradients of lower precision, and tensors plus plain values when saved.

    Args:
        named_parameters: (name, parameter) pairs, or parameters, which are then named by position.
        optimizer: whose steps to scale.
        beta: decay of the moving averages, in [0, 1).
        alpha: strength; 0 measures and changes nothing.
        eps_rel: floor of the ratio's denominator as a share of the mean square.
        warmup_steps: c is 1 while a tensor has seen fewer gradients than this.
        min_scaling_factor: smallest c, in (0, 1].
        variance_cap: largest ratio that is acted on.
        statistic: what is measured: `elementwise`, `total`, `mean`, `norm`, `elementwise_full`
            or `microbatch`.
        reference: level that noise is compared with: `absolute`, the signal; or `median`, the slow
            median of the tensor's own noise, without regard to the signal.
        scope: `per_tensor`, or `global` for one c from the 90th percentile of the ratios. A global
            c on the gradient is undone by a clip of the global norm that follows.
        apply_to: `auto`, `grad` or `update`.
        enabled: false makes every call do nothing.

    Raises:
        RangeError: if a number lies outside its range.
        ChoiceError: if a name is unknown.
        ArgumentError: if a name comes twice, `update` is asked for without an optimizer, or
            `elementwise_full` with the median.
    """

    def __init__(
        self,
        named_parameters: Parameters,
        *,
        optimizer: Optimizer | None = None,
        beta: float = 0.99,
        alpha: float = 0.1,
        eps_rel: float = 1e-3,
        warmup_steps: int = 100,
        min_scaling_factor: float = 0.5,
        variance_cap: float = 50.0,
        statistic: str = "elementwise",
        reference: str = "absolute",
        scope: str = "per_tensor",
        apply_to: str = "auto",
        enabled: bool = True,
    ) -> None:
        check.check_choice(statistic, tuple(STATISTICS), name="statistic")
        check.check_choice(reference, REFERENCES, name="reference")
        check.check_choice(scope, SCOPES, name="scope")
        check.check_choice(apply_to, APPLY_TO, name="apply_to")
        _check_numbers(beta, alpha, eps_rel, warmup_steps, min_scaling_factor, variance_cap)
        _check_pair(statistic, reference)
        self.beta, self.alpha, self.eps_rel = beta, alpha, eps_rel
        self.warmup_steps = warmup_steps
        self.min_scaling_factor, self.variance_cap = min_scaling_factor, variance_cap
        self.statistic, self.reference, self.scope = statistic, reference, scope
        self.enabled = enabled
        self._link(named_parameters)
        self.optimizer = optimizer
        self._step_scale = step_scale_of(optimizer, apply_to)

    def _link(self, named_parameters: Parameters) -> None:
        self._parameters = NamedParameters(named_parameters)
        tensors, device = self._parameters.tensors, self._parameters.device
        is_wide = any(tensor.dtype == torch.float64 for tensor in tensors)
        self._dtype = torch.float64 if is_wide else torch.float32
        self._estimator: Estimator = STATISTICS[self.statistic](
            [tensor.shape for tensor in tensors],
            beta=self.beta,
            eps_rel=self.eps_rel,
            dtype=self._dtype,
            device=device,
        )
        self._nonfinite = torch.zeros(len(tensors), dtype=torch.int64, device=device)
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._largest = torch.zeros((), dtype=torch.float64, device=device)
        self._median = torch.zeros(len(tensors), dtype=torch.float64, device=device)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters, in order."""
        return self._parameters.tensors

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""
        return self._parameters.names

    @property
    def apply_to(self) -> Literal["grad", "update"]:
        """Where the factors act, `auto` resolved."""
        return "grad" if self._step_scale is None else "update"

    # -- measuring and scaling --------------------------------------------------------------------

    @torch.no_grad()
    def update_statistics(self, *, veto: Tensor | None = None) -> None:
        """Take the raw gradients in, before anything scales or clips them.

        Args:
            veto: device flag; where true, nothing is learned from this step, and gradients that are
                not finite are counted all the same.
        """
        if not self.enabled:
            return
        raw, where = self._parameters.gradients()
        if not raw:
            self._estimator.abandon()
            return
        grads = tensor_lists.as_dtype(raw, self._dtype)
        peak = tensor_lists.fill(tensor_lists.largest(grads), where)
        finite = where.mask & (peak <= LARGEST[self._dtype])
        self._nonfinite += where.mask & ~finite
        seen = finite if veto is None else finite & ~veto
        self._estimator.update(grads, where, seen)
        if self.reference == "median":
            self._follow_median(seen)
        learned = seen.any()
        self._steps += learned
        gain = gradient_noise.gain(self._steps.double(), beta=self.beta)
        largest = torch.where(seen, peak, 0.0).amax()
        moved = self._largest + gain * (largest - self._largest)
        self._largest.copy_(torch.where(learned, moved, self._largest))

    def _follow_median(self, seen: Tensor) -> None:
        """Move the slow median of each tensor's noise that was seen, [P]."""
        after = self._estimator.count - max(self.warmup_steps, 1)
        slow = slow_beta(self.beta)
        gain = gradient_noise.gain((after + 1).clamp(min=1).double(), beta=slow)
        variance = self._noise().variance
        moved = gradient_noise.moving_median(self._median, variance, gain)
        moved = torch.where(after > 0, moved, variance)
        self._median.copy_(torch.where(seen, moved, self._median))

    @torch.no_grad()
    def observe_microbatch(self) -> None:
        """Take in the gradients accumulated so far; call it after the backward of each micro-batch.

        Only the statistic `microbatch` uses it. The parts must have equal shares of the sum.
        """
        if not self.enabled:
            return
        raw, where = self._parameters.gradients()
        self._estimator.observe(tensor_lists.as_dtype(raw, self._dtype), where)

    def abandon_step(self) -> None:
        """Drop the micro-batches of a step that is not taken; the next one starts with none.

        Call it wherever `observe_microbatch` was called and `update_statistics` is not.
        """
        self._estimator.abandon()

    @torch.no_grad()
    def scale_gradients(self) -> None:
        """Apply the factors: to `.grad`, or to the next step of the optimizer."""
        if not self.enabled:
            return
        if self._step_scale is None:
            grads, where = self._parameters.gradients()
            factor = tensor_lists.pick(self._factors(), where).to(self._dtype)
            tensor_lists.scale_(grads, factor, where)
        else:
            self._step_scale.set(self.parameters, self._factors().to(self._dtype))

    def step(self) -> None:
        """Measure, then scale."""
        self.update_statistics()
        self.scale_gradients()

    # -- reading ----------------------------------------------------------------------------------

    def _noise(self) -> Noise:
        return self._estimator.noise()

    def _scale(self, ratio: Tensor) -> Tensor:
        return gradient_noise.scaling_factor(
            ratio, alpha=self.alpha, floor=self.min_scaling_factor, cap=self.variance_cap
        )

    def _ratio(self, noise: Noise) -> Tensor:
        """Return [P] ratios that the factors are made of: to the signal, or above the median."""
        if self.reference == "absolute":
            return noise.ratio
        return gradient_noise.relative_excess(noise.variance, self._median)

    def _factors(self, noise: Noise | None = None) -> Tensor:
        """Return [P] factors as they are applied: 1 in a tensor's warm-up."""
        if not self.enabled:
            return torch.ones_like(self._estimator.size)
        ratio = self._ratio(noise or self._noise())
        if self.scope == "global":
            ratio = self._percentile(ratio, PERCENTILE).expand_as(ratio)
        warm = self._estimator.count >= max(self.warmup_steps, 1)
        return torch.where(warm, self._scale(ratio), 1.0)

    def _percentile(self, values: Tensor, level: float) -> Tensor:
        """Return a percentile over the tensors that have seen a gradient; 0 if there is none."""
        known = torch.where(self._estimator.count > 0, values, math.nan)
        percentile = known.nanquantile(level)
        return torch.where(percentile.isnan(), 0.0, percentile)

    @torch.no_grad()
    def variance(self) -> dict[str, Tensor]:
        """Return the noise variance of each tensor, by name."""
        return self._parameters.named(self._noise().variance)

    @torch.no_grad()
    def factors(self) -> dict[str, Tensor]:
        """Return the factor of each tensor as it is applied (1 in its warm-up), by name."""
        return self._parameters.named(self._factors())

    @property
    def nonfinite_counts(self) -> Tensor:
        """How many gradients of each tensor were not finite, int64 [P]: the state itself."""
        return self._nonfinite

    def nonfinite(self) -> dict[str, Tensor]:
        """Return how many gradients of each tensor were not finite, by name."""
        return self._parameters.named(self._nonfinite.clone())

    @torch.no_grad()
    def get_normalized_variance(self) -> Tensor:
        """Return the 90th percentile over tensors of the noise-to-signal ratio, warm-up or not."""
        return self._percentile(self._noise().ratio, PERCENTILE)

    @torch.no_grad()
    def get_scaling_factor(self) -> Tensor:
        """Return the factor of the 90th percentile over tensors of the ratio, warm-up or not.

        With `reference="absolute"` that is the one that belongs to `get_normalized_variance`.
        """
        return self._scale(self._percentile(self._ratio(self._noise()), PERCENTILE))

    @torch.no_grad()
    def metrics(self) -> dict[str, Tensor]:
        """Return what to log, as tensors without dimensions.

        Percentiles and means are over tensors that have seen a gradient. `scaling_factor` is the
        mean of the factors as applied, `factor_mean` the same over all elements: the constant that
        shrinks the steps as much. `floor_fraction` is the share of factors within 1 % of the
        smallest that is allowed. `noise_fraction` is the share of the gradient's mean square
        that is noise, over all elements. `grad_norm_ema` is the root of the moving mean of the
        squared norm. `effect_on_update` is the share of the step's length that the factors take:
        steps count by their number of elements where c acts on the update (an Adam-type step is
        about as long in each element), by the gradient's square where it acts on the gradient.
        """
        noise, count = self._noise(), self._estimator.count
        size = torch.where(count > 0, self._estimator.size, 0.0)
        factor = self._factors(noise)
        total = (size * noise.second_moment).sum()
        length = size if self.apply_to == "update" else size * noise.second_moment
        kept = _share((factor.square() * length).sum(), length.sum(), empty=1.0)
        cold = (count > 0) & (count < self.warmup_steps)
        known = (count > 0).double()
        at_floor = factor <= AT_FLOOR * self.min_scaling_factor
        spread = {
            f"stochastic_var_p{level}": self._percentile(noise.variance, level / 100)
            for level in (10, 50, 90)
        }
        values = {
            "normalized_variance": self._percentile(noise.ratio, PERCENTILE),
            **spread,
            "stochastic_var_mean": _share((known * noise.variance).sum(), known.sum()),
            "grad_norm_ema": total.sqrt(),
            "grad_max_ema": self._largest.clone(),
            "scaling_factor": _share((known * factor).sum(), known.sum(), empty=1.0),
            "factor_mean": _share((size * factor).sum(), size.sum(), empty=1.0),
            "factor_median": torch.where(known.any(), self._percentile(factor, 0.5), 1.0),
            "factor_min": torch.where(known > 0, factor, 1.0).amin(),
            "floor_fraction": _share((known * at_floor).sum(), known.sum()),
            "step_count": self._steps.clone(),
            "warmup_active": (cold.any() | (self._steps == 0)).double(),
            "noise_fraction": gradient_noise.noise_fraction(
                (size * noise.variance).sum(), (size * noise.signal).sum()
            ),
            "effect_on_update": 1.0 - kept.sqrt(),
        }
        return {f"vgs/{name}": value for name, value in values.items()}

    # -- being advanced by a compiled step --------------------------------------------------------

    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return counts, spreads, mean squares, refusals, steps, peak and medians themselves."""
        count, rows = self._estimator.count, self._estimator.rows
        own = (self._nonfinite, self._steps, self._largest, self._median)
        return count, rows["spread"], rows["mean_square"], *own

    def means(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the moving means of the statistic `elementwise` themselves, for parameters."""
        places = {id(param): place for place, param in enumerate(self.parameters)}
        return [self._estimator.tensors["mean"][places[id(param)]] for param in parameters]

    # -- keeping ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state: tensors by parameter name, and plain values."""
        estimator = self._estimator
        rows = {"count": estimator.count, **estimator.rows}
        if self.reference == "median":
            rows["median"] = self._median
        parameters = {
            name: {
                **{key: row[place].clone() for key, row in rows.items()},
                **{key: parts[place].clone() for key, parts in estimator.tensors.items()},
            }
            for place, name in enumerate(self.names)
        }
        return {
            "version": VERSION,
            "statistic": self.statistic,
            "reference": self.reference,
            "parameters": parameters,
            "steps": self._steps.clone(),
            "largest": self._largest.clone(),
            "nonfinite": self.nonfinite(),
        }

    def floating_state(self) -> list[Tensor]:
        """Return all floating tensors of `state_dict`, numbers of all parameters in rows."""
        estimator = self._estimator
        lists = (tensor for parts in estimator.tensors.values() for tensor in parts)
        median = [self._median] if self.reference == "median" else []
        return [*estimator.rows.values(), *median, *lists, self._largest]

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, in place; tensors are found by name.

        A state of another version, statistic or reference measures something else: everything is
        reset, with a warning. One without a reference is of the time before there were two.

        Raises:
            ArtifactError: if the state has other names.
            ShapeError: if a tensor has another shape.
        """
        saved_values = {"reference": "absolute", **state}
        expected_values = {
            "version": VERSION,
            "statistic": self.statistic,
            "reference": self.reference,
        }
        for key, expected in expected_values.items():
            given = saved_values.get(key)
            if given != expected:
                self._reset()
                warnings.warn(
                    f"The state of the gradient scaler has the {key} {given!r}, this one"
                    f" the {key} {expected!r}: it starts anew.",
                    UserWarning,
                    stacklevel=2,
                )
                return
        self._check_state(state["parameters"])
        estimator = self._estimator
        estimator.abandon()
        for place, name in enumerate(self.names):
            saved = state["parameters"][name]
            for key, row in {"count": estimator.count, **estimator.rows}.items():
                row[place].copy_(saved[key])
            for key, parts in estimator.tensors.items():
                parts[place].copy_(saved[key])
            if self.reference == "median":
                self._median[place].copy_(saved["median"])
            self._nonfinite[place].copy_(state["nonfinite"][name])
        self._steps.copy_(state["steps"])
        self._largest.copy_(state["largest"])

    def _check_state(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        if set(saved) != set(self.names):
            differ = sorted(set(saved) ^ set(self.names))
            raise ArtifactError(
                "artifact-mismatch",
                wrong="the state must have the names of the parameters",
                found=f"`{differ[0]}` in only one of them",
                remedy="Load the state into a scaler of the same network.",
            )
        for name, tensor in zip(self.names, self.parameters, strict=True):
            for key in self._estimator.tensors:
                if saved[name][key].shape != tensor.shape:
                    raise ShapeError(
                        wrong=f"the state of `{name}` must have its shape {tuple(tensor.shape)}",
                        found=f"{tuple(saved[name][key].shape)}",
                        remedy="Load the state into a scaler of the same network.",
                    )

    @torch.no_grad()
    def _reset(self) -> None:
        estimator = self._estimator
        for row in (estimator.count, *estimator.rows.values()):
            row.zero_()
        for parts in estimator.tensors.values():
            torch._foreach_zero_(parts)
        estimator.abandon()
        for value in (self._nonfinite, self._steps, self._largest, self._median):
            value.zero_()

    def relink(self, named_parameters: Parameters) -> None:
        """Follow other tensors of the same names, as after a model was loaded or rebuilt.

        Statistics move with the names, whatever the order or the device.

        Raises:
            ArtifactError: if the names differ.
            ShapeError: if a tensor has another shape.
        """
        state = self.state_dict()
        before = self.__dict__.copy()
        self._link(named_parameters)
        try:
            self.load_state_dict(state)
        except (ArtifactError, ShapeError):
            self.__dict__.update(before)
            raise

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(statistic={self.statistic!r}, "
            f"reference={self.reference!r}, scope={self.scope!r}, "
            f"apply_to={self.apply_to!r}, beta={self.beta}, alpha={self.alpha}, "
            f"eps_rel={self.eps_rel}, warmup_steps={self.warmup_steps}, "
            f"min_scaling_factor={self.min_scaling_factor}, variance_cap={self.variance_cap}, "
            f"enabled={self.enabled}, tensors={len(self.names)})"
        )


def slow_beta(beta: float) -> float:
    """Return the decay of the median from that of the statistics."""
    return 1.0 - (1.0 - beta) / SLOWNESS


def _share(part: Tensor, whole: Tensor, *, empty: float = 0.0) -> Tensor:
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1.0), empty)


def _check_pair(statistic: str, reference: str) -> None:
    """Refuse a statistic whose difference from another the reference does not read."""
    if (statistic, reference) == ("elementwise_full", "median"):
        raise ArgumentError(
            "out-of-range",
            wrong="`statistic` must not be `elementwise_full` where `reference` is `median`",
            found="both: they differ from `elementwise` in the ratio to the signal alone, which a "
            "median of the variance does not read",
            remedy="Use the statistic `elementwise`, or the reference `absolute`.",
        )


def _check_numbers(
    beta: float,
    alpha: float,
    eps_rel: float,
    warmup_steps: int,
    min_scaling_factor: float,
    variance_cap: float,
) -> None:
    """Refuse settings of a scaler that lie outside their ranges."""
    rules = {
        "beta": (beta, 0.0 <= beta < 1.0, "lie in [0, 1)", 0.99),
        "alpha": (alpha, 0.0 <= alpha < math.inf, "be at least 0 and finite", 0.1),
        "eps_rel": (eps_rel, 0.0 < eps_rel < math.inf, "be greater than 0 and finite", 1e-3),
        "warmup_steps": (warmup_steps, warmup_steps >= 0, "be at least 0", 100),
        "min_scaling_factor": (
            min_scaling_factor,
            0.0 < min_scaling_factor <= 1.0,
            "lie in (0, 1]",
            0.5,
        ),
        "variance_cap": (variance_cap, variance_cap > 0.0, "be greater than 0", 50),
    }
    for name, (value, holds, rule, default) in rules.items():
        if not holds:
            raise RangeError(
                wrong=f"`{name}` must {rule}",
                found=repr(value),
                remedy=f"The default is {default}.",
            )
