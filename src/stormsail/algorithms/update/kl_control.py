"""KL control of an update: early stopping of the epochs, and an adaptive KL penalty."""

import math

import torch
from torch import Tensor

from stormsail.algorithms.config import KlConfig
from stormsail.core.config import Config
from stormsail.core.files.documents import JsonValue

_BACK_CALCULATION = 0.9
"""Share of the integral that is kept while the output is at a bound."""


class KlState(Config):
    """Saved state of the controller."""

    beta: float
    """Weight of the divergence in the loss."""
    integral: float
    """Sum of the errors, bounded."""
    error: float
    """Of the update before."""


STOP_NUMBERS = 5
"""Numbers of the state of `next_stop`: average, count, count beyond the target, the same in a row,
and whether the epochs have ended."""


def next_stop(
    state: Tensor, divergence: Tensor, target: Tensor, config: KlConfig, *, counts: Tensor
) -> Tensor:
    """Return the state after a minibatch: the rules of `KlControl.stops` without a host sync.

    Args:
        state: float64 [`STOP_NUMBERS`], zeros when an update begins.
        divergence: of the minibatch, float64.
        target: `KlControl.target` of its epoch, float64.
        config: of the rules.
        counts: whether the minibatch counts; where not, the state stays as it is.
    """
    if not config.target_kl:
        return state
    average, count, over, streak, _ = state.unbind()
    before = torch.where(count > 0.0, average, divergence)
    average = before + config.ema_alpha * (divergence - before)
    measured = average if config.use_ema else divergence
    beyond = ~(measured <= target)  # an unknown divergence counts as too far
    count, over = count + 1.0, over + beyond
    streak = torch.where(beyond, streak + 1.0, 0.0)
    stops = torch.zeros_like(beyond)
    if config.kl_early_stop:
        far = ~(divergence < config.kl_absolute_stop_factor * target)
        least = config.kl_consec_minibatches
        share = (count >= least) & (over / count >= config.kl_exceed_stop_fraction)
        stops = far | (streak >= least) | share
    after = torch.stack((average, count, over, streak, stops.to(state.dtype)))
    return torch.where(counts, after, state)


class KlControl:
    """Early stopping and penalty coefficient from the KL divergence of the minibatches.

    Three rules end the epochs: one minibatch beyond `kl_absolute_stop_factor` times the target,
    `kl_consec_minibatches` in a row beyond it, or a share of `kl_exceed_stop_fraction` of all so
    far. With `use_ema` the last two read the moving average.

    The penalty's coefficient is moved once an update by a PID controller on the relative error
    KL / target - 1. Its integral is bounded by (beta_max - beta_min) / ki and shrinks while the
    coefficient is at a bound, so that it comes back at once.
    """

    def __init__(self, config: KlConfig) -> None:
        self.config = config
        self.beta = config.beta_init
        self.integral = 0.0
        self.error = 0.0
        self.average: float | None = None
        self.reason = ""
        self._count = self._over = self._streak = 0
        self._epoch = 0

    @property
    def penalty(self) -> float:
        """Weight of the divergence in the loss; 0 without one."""
        on = self.config.penalty and bool(self.config.target_kl)
        return self.beta if on else 0.0

    @property
    def target(self) -> float:
        """Divergence that counts as too far in this epoch; infinite when switched off."""
        if not self.config.target_kl:
            return math.inf
        return self.config.target_kl * self.config.kl_epoch_decay**self._epoch

    def begin_update(self) -> None:
        """Reset the counters of the update before."""
        self._count = self._over = self._streak = self._epoch = 0
        self.average, self.reason = None, ""

    def begin_epoch(self, epoch: int) -> None:
        """Set the target of another epoch."""
        self._epoch = epoch

    def stops(self, divergence: float) -> bool:
        """Return whether the epochs must end after a minibatch of this divergence."""
        config = self.config
        if not config.target_kl:
            return False
        before = divergence if self.average is None else self.average
        self.average = before + config.ema_alpha * (divergence - before)
        measured = self.average if config.use_ema else divergence
        over = not measured <= self.target  # an unknown divergence counts as too far
        self._count += 1
        self._over += over
        self._streak = self._streak + 1 if over else 0
        if not config.kl_early_stop:
            return False
        self.reason = self._broken(divergence)
        return bool(self.reason)

    def _broken(self, divergence: float) -> str:
        config = self.config
        if not divergence < config.kl_absolute_stop_factor * self.target:
            return "absolute"
        if self._streak >= config.kl_consec_minibatches:
            return "consecutive"
        enough = self._count >= config.kl_consec_minibatches
        if enough and self._over / self._count >= config.kl_exceed_stop_fraction:
            return "fraction"
        return ""

    def end_update(self, divergence: float) -> None:
        """Move the penalty's coefficient after an update of this mean divergence."""
        config = self.config
        if not config.target_kl or not math.isfinite(divergence):
            return
        error = divergence / config.target_kl - 1.0
        bound = (config.beta_max - config.beta_min) / config.ki if config.ki else 0.0
        self.integral = min(max(self.integral + error, -bound), bound)
        change = config.kp * error + config.kd * (error - self.error)
        wanted = config.beta_init + change + config.ki * self.integral
        self.beta = min(max(wanted, config.beta_min), config.beta_max)
        if self.beta != wanted:
            self.integral *= _BACK_CALCULATION
        self.error = error

    def state_dict(self) -> dict[str, JsonValue]:
        """Return the state for a checkpoint; between updates there is nothing else."""
        saved = KlState(beta=self.beta, integral=self.integral, error=self.error)
        return saved.model_dump(mode="json")

    def load_state_dict(self, state: JsonValue) -> None:
        """Restore a saved state.

        Raises:
            ArtifactError: if the state is not one of a controller.
        """
        saved = KlState.from_state(state, part="kl")
        self.beta, self.integral, self.error = saved.beta, saved.integral, saved.error
