"""What the optimizers of the UPGD family share: groups, state, noise generator, step scale."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from stormsail.core.errors import ArgumentError, ChoiceError, DtypeError, RangeError, ShapeError
from stormsail.optim.upgd.buckets import Bucket, Kind, Span, Workspace, state_dtype
from stormsail.optim.upgd.settings import check_gradient, check_parameters, check_settings
from stormsail.optim.upgd.step import upgd_step_

_GENERATOR = "generator"
"""Key of the noise generator's state in a state dict: a byte tensor."""


class UtilityOptimizer(torch.optim.Optimizer):
    """Thin shell around `upgd_step_`: it holds state, checks settings and does no arithmetic.

    Attributes:
        generator: of the noise. A CUDA graph that captures `step` must be told of it before, with
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
        check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            check_parameters(self.param_groups[-1]["params"])
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
            upgd_step_(buckets, self.generator)
        return loss

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
        found: dict[Kind, list[tuple[int, Tensor]]] = {}
        for index, group in enumerate(self.param_groups):
            for param in group["params"]:
                if param.grad is None or not param.requires_grad or not param.numel():
                    continue
                check_gradient(param, param.grad)
                found.setdefault((param.device, param.dtype), []).append((index, param))
        return [self._bucket(kind, members) for kind, members in found.items()]

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
        one = torch.ones((), dtype=like.dtype, device=like.device)
        return torch.stack([self.step_scale.get(param, one).to(like) for param in params])
