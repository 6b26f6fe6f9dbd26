"""A whole step of the gradient pipeline as a few compiled passes; eager is the reference."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from stormsail.core.errors import ArgumentError
from stormsail.optim.fused import rows
from stormsail.optim.fused.cpu import CpuPasses
from stormsail.optim.fused.cuda import CudaPasses
from stormsail.optim.fused.noise import Noise
from stormsail.optim.fused.passes import Measured, Passes, Tensors, is_capturing
from stormsail.optim.fused.rows import Place, Report, ScalerRows, Scaling, Settings
from stormsail.optim.upgd.base import UtilityOptimizer
from stormsail.optim.upgd.upgd import is_noisy
from stormsail.optim.vgs.scaler import LARGEST, VarianceGradientScaler


class CompiledStep:
    """Guard, statistics, scale, clip and step of the UPGD family, compiled for one network.

    On a CPU the noise comes from `noise.philox`, with a key that the optimizer's generator draws
    for each step: of the same distribution as the eager one, but other numbers.

    Args:
        parameters: of the pipeline; its rows are in their order.
        optimizer: of the UPGD family, `variant="fixed"`, over the same parameters.
        scaler: with the statistic `elementwise` for each tensor, acting on the update, over the
            same parameters; or None.
        bound: of the global norm of the gradients; 0 or less is none.

    Raises:
        ArgumentError: if something else is asked for.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizer: Optimizer,
        scaler: VarianceGradientScaler | None,
        *,
        bound: float,
    ) -> None:
        reason = unfit(parameters, optimizer, scaler)
        if reason is not None or not isinstance(optimizer, UtilityOptimizer):
            raise ArgumentError(
                "out-of-range",
                wrong="what is compiled must be a step of the UPGD family that the kernels know",
                found=reason or type(optimizer).__name__,
                remedy="Change that, or leave `compiled=True` out.",
            )
        self.optimizer, self.scaler, self.bound = optimizer, scaler, bound
        self._given = list(parameters)
        self._params: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        device = self._params[0].device
        self._dtype = self._params[0].dtype
        self._order = _places(parameters, self._params, device=device)
        self._ranks = _places(self._params, parameters, device=device)
        if scaler is not None:
            self._scaler_order = _places(scaler.parameters, self._params, device=device)
            self._scaler_inverse = _places(self._params, scaler.parameters, device=device)
        sizes = [param.numel() for param in self._params]
        self._sizes = torch.tensor(sizes, dtype=torch.float64, device=device)
        self._noise = Noise(self._params)
        self._passes: Passes = CpuPasses() if device.type == "cpu" else CudaPasses(self._params)
        self._settings: dict[tuple[tuple[float, ...], ...], Tensor] = {}
        self._kept: list[Tensor] = []

    def applies(self) -> bool:
        """Say whether this step can be compiled: every gradient is there, dense and of one kind."""
        groups = self.optimizer.param_groups
        here = [param for group in groups for param in group["params"]]
        same = len(here) == len(self._params) and all(
            now is before for now, before in zip(here, self._params, strict=True)
        )
        if not same or self.optimizer.step_scale or unfit(self._given, self.optimizer, self.scaler):
            return False
        return all(
            param.requires_grad
            and param.grad is not None
            and param.grad.layout == torch.strided
            and param.grad.dtype == self._dtype
            and param.grad.is_contiguous()
            for param in self._params
        )

    def measure(self) -> Measured:
        """Look at the raw gradients."""
        return self._passes.measure(self._tensors(), self._all_settings())

    def is_refused(self, measured: Measured) -> Tensor:
        """Return whether a gradient is not finite, or its square is not."""
        return self._passes.is_refused(measured)

    def refuse(self, measured: Measured) -> Report:
        """Change nothing but the scaler's count of what was not finite."""
        return self._passes.refuse(measured, self._all_settings())

    def advance(self, measured: Measured) -> Report:
        """Learn, scale, clip and step; nothing changes where a gradient is not finite."""
        reports: list[Report] = []

        def arithmetic() -> None:
            noisy = any(is_noisy(group) for group in self.optimizer.param_groups)
            settings = self._all_settings()
            prepared = self._passes.prepare(measured, settings)
            if noisy:  # not before, where it would take the room of what prepares
                self._noise.draw(self.optimizer.generator)
            norms = tuple(
                group["utility_norm"]
                for group in self.optimizer.param_groups
                for _ in group["params"]
            )
            lines = self._passes.survey(measured, prepared, settings, norms)
            noise = self._noise.ready() if noisy else None
            self._passes.advance(measured, prepared, lines, noise)
            reports.append(prepared.report)

        self.optimizer.step_by(arithmetic)
        return reports[0]

    def _tensors(self) -> Tensors:
        params = self._params
        states = [self.optimizer.state_of(param) for param in params]
        moments = "exp_avg" in states[0]
        means: list[Tensor] = []
        if self.scaler is not None and self.scaler.enabled:
            means = self.scaler.means(self._params)
        return Tensors(
            grads=[param.grad for param in params if param.grad is not None],
            params=params,
            utility=[state["avg_utility"] for state in states],
            first=[state["exp_avg"] for state in states] if moments else [],
            second=[state["exp_avg_sq"] for state in states] if moments else [],
            means=means,
            steps=[state["step"] for state in states],
        )

    def _scaler_rows(self) -> ScalerRows | None:
        if self.scaler is None or not self.scaler.enabled:
            return None
        return ScalerRows(*self.scaler.rows(), self._scaler_order, self._scaler_inverse)

    def _scaling(self) -> Scaling | None:
        scaler = self.scaler
        if scaler is None or not scaler.enabled:
            return None
        return Scaling(
            beta=scaler.beta,
            alpha=scaler.alpha,
            eps_rel=scaler.eps_rel,
            warmup_steps=scaler.warmup_steps,
            floor=scaler.min_scaling_factor,
            cap=scaler.variance_cap,
            limit=LARGEST[self._dtype],
            follows_median=scaler.reference == "median",
        )

    def _all_settings(self) -> Settings:
        places, given = self._set_by_tensors()
        return Settings(
            sizes=self._sizes,
            numbers=self._numbers(),
            places=places,
            given=given,
            order=self._order,
            ranks=self._ranks,
            scaler=self._scaler_rows(),
            scaling=self._scaling(),
            bound=self.bound,
        )

    def _numbers(self) -> Tensor:
        """Return the settings of each tensor, [13, P]; those that are tensors come later."""
        groups = self.optimizer.param_groups
        numbers = tuple(tuple(rows.settings_of(group)) for group in groups for _ in group["params"])
        if numbers not in self._settings:
            self._settings.clear()
            table = torch.tensor(numbers, dtype=torch.float64).T.contiguous()
            self._settings[numbers] = table.to(self._sizes.device)
        if is_capturing(self._sizes.device):  # the graph reads it at every replay
            self._kept.append(self._settings[numbers])
        return self._settings[numbers]

    def _set_by_tensors(self) -> tuple[tuple[Place, ...], list[Tensor]]:
        """Return the places of settings that are tensors, which a captured graph sees change."""
        places, tensors, start = [], [], 0
        for group in self.optimizer.param_groups:
            stop = start + len(group["params"])
            for row, name in enumerate(rows.SETTINGS[:2]):
                if isinstance(group[name], Tensor):
                    places.append((row, start, stop))
                    tensors.append(group[name].to(self._sizes.device))
            start = stop
        return tuple(places), tensors


def unfit(
    parameters: Sequence[Tensor], optimizer: Optimizer, scaler: VarianceGradientScaler | None
) -> str | None:
    """Return why a step cannot be compiled, or None if it can."""
    if not isinstance(optimizer, UtilityOptimizer):
        return f"the optimizer {type(optimizer).__name__}"
    held = [param for group in optimizer.param_groups for param in group["params"]]
    if {id(param) for param in held} != {id(param) for param in parameters}:
        return "an optimizer of other parameters"
    kinds = {(param.device, param.dtype) for param in held}
    if len(kinds) > 1 or held[0].dtype not in LARGEST:
        return "parameters that are not all float32 or all float64 on one device"
    if not all(param.is_contiguous() and param.numel() for param in held):
        return "a parameter that is empty or not contiguous"
    for group in optimizer.param_groups:
        if group["variant"] != "fixed" or group["noise_scale"] == "rms_update":
            return f"variant={group['variant']!r}, noise_scale={group['noise_scale']!r}"
    return None if scaler is None else _unfit_scaler(held, scaler)


def _unfit_scaler(held: Sequence[Tensor], scaler: VarianceGradientScaler) -> str | None:
    if {id(param) for param in held} != {id(param) for param in scaler.parameters}:
        return "a scaler of other parameters"
    chosen = (scaler.statistic, scaler.scope, scaler.apply_to)
    if chosen != ("elementwise", "per_tensor", "update"):
        names = "statistic={!r}, scope={!r}, apply_to={!r}".format(*chosen)
        return f"a scaler with {names}"
    return None


def _places(these: Sequence[Tensor], among: Sequence[Tensor], *, device: torch.device) -> Tensor:
    places = {id(tensor): place for place, tensor in enumerate(among)}
    return torch.tensor([places[id(tensor)] for tensor in these], dtype=torch.int64, device=device)
