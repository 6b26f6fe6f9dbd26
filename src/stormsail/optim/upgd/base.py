"""Base class of the UPGD optimizers: parameter groups, state, noise generator, step scale."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from stormsail.core.errors import ArgumentError, ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.functional._checks import check_choice
from stormsail.functional.optim.upgd import NORMS
from stormsail.optim.upgd.buckets import Bucket, Kind, Span, Workspace, state_dtype

NOISE_SCALES = ("absolute", "rms_update", "rms_grad")
"""Units of `sigma`: of the direction itself, or of its or the gradient's size in each tensor."""

VARIANTS = ("fixed", "official")
"""Ours, and the published implementation step by step."""

_CHOICES = {"utility_norm": NORMS, "noise_scale": NOISE_SCALES, "variant": VARIANTS}
_FLAGS = ("maximize", "capturable")
_REMEDIES = {
    "lr": "Pass for example 3e-4.",
    "sigma": "Pass for example 0.001, or 0 for no noise.",
    "weight_decay": "Pass for example 0.001, or 0 for none.",
    "lr_compensation": "Pass 2, which undoes the gate of an average weight, or 1.",
    "eps": "Pass for example 1e-8.",
}

_GENERATOR = "generator"
"""Key of the noise generator's state in a state dict: a byte tensor."""


class UtilityOptimizer(torch.optim.Optimizer):
    """Optimizer that holds state and checks settings; the arithmetic is a function of each kind.

    Attributes:
        generator: of the noise. A CUDA graph that captures `step` must know it before, by
            `graph.register_generator_state(optimizer.generator)`.
        step_scale: factor for the whole step of a parameter, 1 for those that are not in it; see
            `set_step_scale`.
    """

    STATE: ClassVar[tuple[str, ...]] = ("avg_utility",)
    """Names of the moving averages that each parameter has."""

    generator: torch.Generator
    step_scale: dict[Tensor, Tensor]
    _other_step: Callable[[], None] | None = None

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        generator: torch.Generator | None,
        seed: int,
    ) -> None:
        self.step_scale = {}
        self._workspace = Workspace()
        super().__init__(params, defaults)
        if generator is None:
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise RangeError(
                    wrong="`seed` must be a whole number of at least 0 and below 2**63",
                    found=repr(seed),
                    remedy="Pass for example 0.",
                )
            device = self.param_groups[0]["params"][0].device
            generator = torch.Generator(device=device).manual_seed(seed)
        self.generator = generator

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with settings of its own; the rest comes from the defaults.

        Raises:
            RangeError, ChoiceError, ShapeError, DtypeError: if a setting means nothing.
        """
        _check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            _check_parameters(self.param_groups[-1]["params"])
        except DtypeError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401  # a loss is whatever the closure returns
        """Take one step with the gradients that are there; without any, change nothing.

        Args:
            closure: computes the loss and its gradients anew; its loss is returned.

        Raises:
            DtypeError: if a gradient is sparse.
            ChoiceError: if a graph is captured although a group is not `capturable`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_capture()
        if self._other_step is not None:
            self._other_step()
            return loss
        buckets = self._buckets()
        if buckets:
            self._update_(buckets)
        return loss

    @abstractmethod
    def _update_(self, buckets: Sequence[Bucket]) -> None:
        """Advance parameters and state by one step, in place."""

    def step_by(self, arithmetic: Callable[[], None]) -> None:
        """Take one step whose arithmetic is done elsewhere; hooks and schedulers see a step."""
        self._other_step = arithmetic
        try:
            self.step()
        finally:
            self._other_step = None

    def set_step_scale(
        self, parameters: Iterable[Tensor], scales: Sequence[Tensor] | Tensor
    ) -> None:
        """Multiply the whole step of some parameters, noise included and weight decay not.

        Holds for every step until it is set anew or cleared. It is no part of the state dict. The
        tensors are read when a step is taken, so a captured graph sees them change.

        Args:
            parameters: those of this optimizer that get a factor; others keep theirs.
            scales: one tensor without dimensions for each, or one row of them.

        Raises:
            ShapeError: if there is not one scale for each parameter.
        """
        given = list(parameters)
        rows = list(scales.unbind()) if isinstance(scales, Tensor) and scales.ndim else list(scales)
        if len(rows) != len(given) or any(row.ndim for row in rows):
            raise ShapeError(
                wrong="`scales` must hold one number for each parameter",
                found=f"{len(rows)} of shapes {sorted({tuple(row.shape) for row in rows})} "
                f"for {len(given)} parameters",
                remedy="Pass a tensor with one entry for each parameter.",
            )
        self.step_scale.update(zip(given, rows, strict=True))

    def clear_step_scale(self) -> None:
        """Let every parameter take its whole step again."""
        self.step_scale.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return state, groups and the position of the noise generator, as a byte tensor."""
        return {**super().state_dict(), _GENERATOR: self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken, noise included.

        Without a generator in it, the noise goes on from where it is.

        Raises:
            ArgumentError: if the state belongs to another kind of optimizer.
        """
        wanted = {"step", *self.STATE}
        for entry in state_dict["state"].values():
            if set(entry) != wanted:
                raise ArgumentError(
                    "missing-argument",
                    wrong=f"the state of a parameter must hold {', '.join(sorted(wanted))}",
                    found=", ".join(sorted(map(str, entry))) or "nothing",
                    remedy=f"Load the state of a {type(self).__name__}.",
                )
        super().load_state_dict(state_dict)
        self._restore_exactly(state_dict)
        if _GENERATOR in state_dict:
            self.generator.set_state(state_dict[_GENERATOR].cpu())

    def __getstate__(self) -> dict[str, Any]:
        noise = (self.generator.device, self.generator.get_state())
        return {**super().__getstate__(), _GENERATOR: noise}

    def __setstate__(self, state: dict[str, Any]) -> None:
        noise = state.pop(_GENERATOR, None)
        super().__setstate__(state)
        if noise is not None:  # a copy of the object, not a loaded state dict
            device, position = noise
            self.generator = torch.Generator(device=device)
            self.generator.set_state(position)
            self.step_scale = {}
            self._workspace = Workspace()

    def _restore_exactly(self, state_dict: Mapping[str, Any]) -> None:
        """Undo what torch does to loaded state: half precision, and a counter left elsewhere."""
        ids = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(ids, params, strict=True):
            for key, saved in state_dict["state"].get(number, {}).items():
                dtype = torch.float32 if key == "step" else state_dtype(param.dtype)
                own = torch.empty(saved.shape, dtype=dtype, device=param.device)
                self.state[param][key] = own.copy_(saved)

    def _check_capture(self) -> None:
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing and not all(group["capturable"] for group in self.param_groups):
            raise ChoiceError(
                wrong="`capturable` must be True in every group while a graph is captured",
                found="False",
                remedy="Build the optimizer with `capturable=True` and a tensor as `lr`.",
            )

    def _buckets(self) -> list[Bucket]:
        """Return the parameters that take part in this step, by device and dtype."""
        members: dict[Kind, list[tuple[int, Tensor]]] = {}
        for index, group in enumerate(self.param_groups):
            for param in group["params"]:
                if param.grad is None or not param.requires_grad or not param.numel():
                    continue
                _check_gradient(param, param.grad)
                members.setdefault((param.device, param.dtype), []).append((index, param))
        return [self._bucket(kind, own) for kind, own in members.items()]

    def _bucket(self, kind: Kind, members: list[tuple[int, Tensor]]) -> Bucket:
        params = [param for _, param in members]
        direction, share, noise = self._workspace.buffers(kind, [param.shape for param in params])
        spans = []
        first = start = 0
        for index in dict.fromkeys(index for index, _ in members):
            own = [param for place, param in members if place == index]
            last, stop = first + len(own), start + sum(param.numel() for param in own)
            spans.append(Span(self.param_groups[index], slice(first, last), slice(start, stop)))
            first, start = last, stop
        return Bucket(
            spans=spans,
            params=params,
            grads=[param.grad for param in params if param.grad is not None],
            states=[self.state_of(param) for param in params],
            direction=direction,
            share=share,
            noise=noise,
            step_scale=self._scales_of(params, direction.flat),
        )

    def state_of(self, param: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, which begins with zeros."""
        state: dict[str, Tensor] = self.state[param]
        if not state:
            dtype, device = state_dtype(param.dtype), param.device
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for name in self.STATE:  # contiguous even where the parameter is not
                state[name] = torch.zeros(param.shape, dtype=dtype, device=device)
        return state

    def _scales_of(self, params: list[Tensor], like: Tensor) -> Tensor | None:
        if not any(param in self.step_scale for param in params):
            return None
        whole = torch.ones((), dtype=like.dtype, device=like.device)
        return torch.stack([self.step_scale.get(param, whole).to(like) for param in params])


def _check_settings(group: Mapping[str, Any]) -> None:
    """Refuse settings of a parameter group that mean nothing."""
    for name in ("lr", "sigma"):
        _check_number(name, group[name], may_be_tensor=True)
    _check_number("weight_decay", group["weight_decay"])
    _check_number("lr_compensation", group["lr_compensation"], positive=True)
    _check_decay("beta_utility", group["beta_utility"])
    if "betas" in group:
        _check_betas(group["betas"])
        _check_number("eps", group["eps"])
    for name, choices in _CHOICES.items():
        check_choice(group[name], choices, name=name)
    for name in _FLAGS:
        if not isinstance(group[name], bool):
            raise DtypeError(
                wrong=f"`{name}` must be True or False",
                found=repr(group[name]),
                remedy="Pass a boolean.",
            )


def _check_parameters(parameters: Iterable[Tensor]) -> None:
    """Refuse numbers that no gradient moves."""
    for parameter in parameters:
        if not parameter.is_floating_point():
            raise DtypeError(
                wrong="every parameter must be real and floating",
                found=f"{parameter.dtype} of shape {tuple(parameter.shape)}",
                remedy="Leave it out of the optimizer, or view complex numbers as real ones.",
            )


def _check_gradient(parameter: Tensor, gradient: Tensor) -> None:
    """Refuse a sparse gradient: a weight without an entry would still need noise and decay."""
    if gradient.layout != torch.strided:
        raise DtypeError(
            wrong="every gradient must be dense",
            found=f"{gradient.layout} for a parameter of shape {tuple(parameter.shape)}",
            remedy="Build the embedding with `sparse=False`.",
        )


def _check_number(
    name: str, value: object, *, may_be_tensor: bool = False, positive: bool = False
) -> None:
    if isinstance(value, Tensor) and may_be_tensor:
        if value.ndim:
            raise ShapeError(
                wrong=f"`{name}` must be a number or a tensor without dimensions",
                found=f"{name} {tuple(value.shape)}",
                remedy="Use one parameter group for each value.",
            )
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (positive and value == 0):  # type: ignore[arg-type,operator]  # a number by then
        least = "greater than 0" if positive else "at least 0"
        raise RangeError(
            wrong=f"`{name}` must be a finite number {least}",
            found=repr(value),
            remedy=_REMEDIES[name],
        )


def _check_decay(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise RangeError(
            wrong=f"`{name}` must lie in [0, 1)",
            found=repr(value),
            remedy="Pass for example 0.999.",
        )


def _check_betas(betas: object) -> None:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise RangeError(
            wrong="`betas` must be two numbers",
            found=repr(betas),
            remedy="Pass for example (0.9, 0.999).",
        )
    for position, beta in enumerate(betas):
        _check_decay(f"betas[{position}]", beta)
