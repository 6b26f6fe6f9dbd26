"""`stormsail bench functional`: the hot formulas beside a plain loop."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from stormsail.bench.formulas import loops
from stormsail.bench.formulas.loops import Array
from stormsail.bench.timing import Row, best_milliseconds
from stormsail.core.generators import Generators
from stormsail.functional import policy, quantile, returns, risk

GAMMA, LAM, STEPS, ALPHA, KAPPA, CLIP = 0.99, 0.95, 64, 0.05, 0.02, 0.2


@dataclass(frozen=True)
class Rollout:
    """Random inputs of the size of one rollout."""

    reward: Tensor
    value: Tensor
    bootstrap: Tensor
    quantiles: Tensor
    targets: Tensor
    probs: Tensor
    atoms: Tensor
    terminated: Tensor
    truncated: Tensor

    @classmethod
    def draw(cls, *, steps: int, environments: int, quantiles: int, seed: int) -> "Rollout":
        """Return one rollout whose episodes end about every 50 steps."""
        generator = Generators(seed).stream("bench.functional")
        cell = (steps, environments)

        def normal(*shape: int) -> Tensor:
            return torch.empty(shape).normal_(generator=generator)

        def rare() -> Tensor:
            return torch.empty(cell).uniform_(generator=generator) < 0.01

        return cls(
            reward=0.1 * normal(*cell),
            value=normal(*cell),
            bootstrap=normal(*cell),
            quantiles=normal(*cell, quantiles),
            targets=normal(*cell, quantiles),
            probs=normal(*cell, quantiles).softmax(-1),
            atoms=0.5 * torch.arange(quantiles) - 0.25 * quantiles,  # exact in float32
            terminated=rare(),
            truncated=rare(),
        )

    def double(self) -> "Rollout":
        """Return it in float64, in which a formula and its loop must agree."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return Rollout(
            **{
                name: tensor.double() if tensor.is_floating_point() else tensor
                for name, tensor in columns.items()
            }
        )


Formula = Callable[[Rollout], Tensor]


def rows(rollout: Rollout, *, repeats: int = 7) -> Iterator[Row]:
    """Yield one row per hot function."""
    exact = rollout.double()
    for name, formula, loop in _pairs():
        fastest = best_milliseconds(functools.partial(formula, rollout), repeats=repeats)
        started = time.perf_counter()
        expected = loop(exact)
        duration = 1e3 * (time.perf_counter() - started)
        difference = (formula(exact) - expected).abs().max().item()
        yield Row(name, fastest, duration, difference)


def _pairs() -> Iterator[tuple[str, Formula, Formula]]:
    def loop(function: Callable[..., Array], *names: str, **options: float) -> Formula:
        def run(x: Rollout) -> Tensor:
            columns = [getattr(x, name).numpy() for name in names]
            return torch.from_numpy(function(*columns, **options))

        return run

    ends = ("terminated", "truncated")
    yield (
        "gae",
        lambda x: returns.gae(
            x.reward, x.value, x.bootstrap, x.terminated, x.truncated, gamma=GAMMA, lam=LAM
        ),
        loop(loops.gae, "reward", "value", "bootstrap", *ends, gamma=GAMMA, lam=LAM),
    )
    yield (
        "quantile_nstep_targets",
        lambda x: returns.quantile_nstep_targets(
            x.reward, x.quantiles, x.terminated, x.truncated, gamma=GAMMA, steps=STEPS
        ),
        loop(loops.quantile_nstep_targets, "reward", "quantiles", *ends, gamma=GAMMA, steps=STEPS),
    )
    yield (
        "quantile_lambda_targets",
        lambda x: returns.quantile_lambda_targets(
            x.reward, x.quantiles, x.terminated, x.truncated, gamma=GAMMA, lam=LAM
        ),
        loop(loops.quantile_lambda_targets, "reward", "quantiles", *ends, gamma=GAMMA, lam=LAM),
    )
    yield (
        "categorical_nstep_targets",
        lambda x: returns.categorical_nstep_targets(
            x.reward, x.probs, x.terminated, x.truncated, x.atoms, gamma=GAMMA, steps=STEPS
        ),
        loop(
            loops.categorical_nstep_targets,
            *("reward", "probs", *ends, "atoms"),
            gamma=GAMMA,
            steps=STEPS,
        ),
    )
    yield (
        "huber_loss",
        lambda x: quantile.huber_loss(
            x.quantiles,
            x.targets,
            quantile.midpoints(x.quantiles.shape[-1], like=x.value),
            kappa=KAPPA,
        ),
        loop(loops.huber_loss, "quantiles", "targets", kappa=KAPPA),
    )
    yield (
        "cvar",
        lambda x: risk.cvar(x.quantiles, alpha=ALPHA),
        loop(loops.cvar, "quantiles", alpha=ALPHA),
    )
    yield (
        "budget_advantage",
        lambda x: risk.budget_advantage(x.targets, x.quantiles, x.value, alpha=ALPHA),
        loop(loops.budget_advantage, "targets", "quantiles", "value", alpha=ALPHA),
    )
    yield (
        "clipped_surrogate",
        lambda x: policy.clipped_surrogate(x.value, x.bootstrap, x.reward, clip=CLIP),
        loop(loops.clipped_surrogate, "value", "bootstrap", "reward", clip=CLIP),
    )
