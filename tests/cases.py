"""One worked call of every public formula, for the tests that hold for all of them.

A new public function in `stormsail.functional` must have an entry here; `test_every_formula` says
so otherwise. `differentiable` names the positional arguments that gradients flow through.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stormsail.functional import (
    advantage,
    categorical,
    distribution,
    perturbation,
    policy,
    population,
    quantile,
    recurrence,
    return_scale,
    returns,
    risk,
    risk_gate,
    statistics,
    twin,
    value_clip,
)
from stormsail.functional.market import (
    fills,
    indicators,
    rewards,
    rolling,
)
from stormsail.functional.optim import (
    gradient_noise,
    upgd,
)

T, B, N, K, D = 5, 3, 4, 6, 2


@dataclass(frozen=True)
class Case:
    """A call: the function, what it gets, and which arguments carry gradients."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    differentiable: tuple[int, ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        module = self.function.__module__.rsplit(".", 1)[-1]
        return f"{module}.{self.function.__name__}" + (f"[{self.label}]" if self.label else "")

    def call(self, args: tuple[Any, ...] | None = None) -> Any:
        return self.function(*(self.args if args is None else args), **self.options)


def move(value: Any, *, dtype: torch.dtype | None = None, device: str | None = None) -> Any:
    """Return the value with every floating tensor in it cast and every tensor moved."""
    if isinstance(value, Tensor):
        target = dtype if dtype is not None and value.is_floating_point() else value.dtype
        return value.to(dtype=target, device=device)
    if isinstance(value, tuple):
        parts = [move(part, dtype=dtype, device=device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: move(part, dtype=dtype, device=device) for key, part in value.items()}
    return value


def tensors(value: Any) -> list[Tensor]:
    """Return every tensor in a result."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [result for part in value for result in tensors(part)]
    return []


class Draw:
    """Inputs from one seed, in float64 on the CPU."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.atoms = torch.linspace(-2.0, 2.0, K, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return 0.1 + 0.8 * torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def flags(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator) < 0.25

    def probs(self, *shape: int) -> Tensor:
        return self.normal(*shape).softmax(-1)

    def classes(self, *shape: int) -> Tensor:
        return torch.randint(K, shape, generator=self.generator)


def build(seed: int = 7) -> list[Case]:
    """Return the calls, from one seed."""
    draw = Draw(seed)
    return [
        *_single(draw),
        *_by_mode(draw),
        *_by_kind(draw),
        *_indicators(draw),
        *_gradient_noise(draw),
        *_ledger(draw),
        *_recurrence(draw),
        *_risk_trace(draw),
        *_choices(draw),
        *_levels(draw),
        *_all_actions(draw),
        *_adversary(draw),
        *_population(draw),
        *_rewards(draw),
    ]


def _levels(draw: Draw) -> list[Case]:
    """Formulas of quantiles, with the mass that each stands for."""
    normal = draw.normal
    weight = quantile.tail_weights(N, like=draw.atoms)
    mass = quantile.tail_weights(3, like=draw.atoms)
    tau = quantile.levels_of(weight)
    ends = (draw.flags(T, B), draw.flags(T, B))
    tail = {"alpha": 0.3, "weight": weight}
    pair = {"kappa": 0.3, "target_weight": mass}
    clip = {"epsilon": 0.2, "variance_factor": 0.5, "weight": weight}
    return [
        Case(quantile.levels_of, (weight,), {}, (0,)),
        Case(quantile.weights_of, (tau,), {}, (0,)),
        Case(quantile.expectation, (normal(B, N),), {}, (0,), "equal"),
        Case(quantile.expectation, (normal(B, N),), {"weight": weight}, (0,), "weighted"),
        Case(quantile.huber_loss, (normal(B, N), normal(B, 3), tau), pair, (0,), "weighted"),
        Case(quantile.huber_active, (normal(B, N), normal(B, 3)), pair, (), "weighted"),
        Case(quantile.monotone, (normal(B, N),), {"weight": weight}, (0,), "weighted"),
        *(
            Case(risk.cvar, (normal(B, N),), {**tail, "estimator": name}, (0,), f"{name} weighted")
            for name in risk.ESTIMATORS
        ),
        Case(risk.value_at_risk, (normal(B, N),), tail, (0,), "weighted"),
        Case(risk.risk_advantage, (normal(B), normal(B, N)), tail, (), "weighted"),
        Case(
            risk.budget_advantage,
            (normal(B, 3), normal(B, N), normal(B)),
            {**tail, "target_weight": mass},
            (),
            "weighted",
        ),
        Case(
            risk.budget_trace,
            (normal(T, B), normal(T, B, N), normal(T, B, N), normal(T, B), *ends),
            {**tail, "gamma": 0.9, "lam": 0.8},
            (),
            "weighted",
        ),
        *(
            Case(
                twin.twin_quantiles,
                (normal(B, 2, N),),
                {"mode": mode, "weight": weight},
                (0,),
                f"{mode} weighted",
            )
            for mode in ("argmin", "elementwise_min")
        ),
        *(
            Case(
                value_clip.clip_quantiles,
                (normal(B, N), normal(B, N)),
                {**clip, "mode": mode},
                (0,),
                f"{mode} weighted",
            )
            for mode in ("mean_only", "mean_and_variance")
        ),
    ]


def _choices(draw: Draw) -> list[Case]:
    """Masks and several choices at once: 2 of K classes side by side."""
    counts = {"counts": (2, K - 2)}
    logits, other = draw.normal(T, B, K), draw.normal(T, B, K)
    mask = ~draw.flags(T, B, K)
    mask[..., 0] = mask[..., 2] = True
    action = torch.randint(2, (T, B, 2), generator=draw.generator)
    return [
        Case(distribution.masked_logits, (logits, mask), {}, (0,)),
        Case(distribution.multi_categorical_log_prob, (logits, action), counts, (0,)),
        Case(distribution.multi_categorical_entropy, (logits,), counts, (0,)),
        Case(distribution.multi_categorical_kl, (logits, other), counts, (0, 1)),
    ]


def _single(draw: Draw) -> list[Case]:
    normal, uniform, flags, probs = draw.normal, draw.uniform, draw.flags, draw.probs
    atoms = draw.atoms
    ends = (flags(T, B), flags(T, B))
    scale = {"mean": 0.2, "std": 1.5, "new_mean": -0.1, "new_std": 0.7}
    moments_a, moments_b = statistics.moments(normal(7, 3)), statistics.moments(normal(5, 3))
    account = risk_gate.Account(
        weight=normal(B),
        equity=100 * uniform(B),
        peak_equity=100 * (1 + uniform(B)),
        day_start_equity=100 * (1 + uniform(B)),
        turnover=uniform(B),
    )
    limits = risk_gate.Limits(
        max_position=80.0,
        max_leverage=1.0,
        max_turnover=1.5,
        max_drawdown=0.6,
        max_daily_loss=0.5,
        min_equity=5.0,
    )
    return [
        Case(
            returns.gae,
            (normal(T, B), normal(T, B), normal(T, B), *ends),
            {"gamma": 0.9, "lam": 0.8},
            (0, 1, 2),
        ),
        Case(
            returns.quantile_nstep_targets,
            (normal(T, B), normal(T, B, N), *ends),
            {"gamma": 0.9, "steps": 3},
            (0, 1),
        ),
        Case(
            returns.quantile_lambda_targets,
            (normal(T, B), normal(T, B, N), *ends),
            {"gamma": 0.9, "lam": 0.7},
            (0, 1),
        ),
        Case(
            returns.categorical_nstep_targets,
            (0.1 * normal(T, B), probs(T, B, K), *ends, atoms),
            {"gamma": 0.9, "steps": 3},
            (0, 1),
        ),
        Case(
            policy.clipped_surrogate,
            (normal(T, B), normal(T, B), normal(T, B)),
            {"clip": 0.2},
            (0,),
        ),
        Case(policy.ratio_is_clipped, (normal(T, B),), {"clip": 0.2}),
        Case(policy.count_nonfinite, (normal(T, B),)),
        Case(policy.drop_nonfinite, (normal(T, B), normal(T, B), uniform(T, B)), {}, (0, 1)),
        Case(policy.awr_weight, (normal(T, B),), {"beta": 1.0, "max_weight": 2.0}),
        Case(policy.awr_loss, (normal(T, B), normal(T, B)), {"beta": 1.0, "max_weight": 2.0}, (0,)),
        Case(policy.entropy_loss, (normal(T, B), normal(T, B)), {}, (0,)),
        Case(
            distribution.gaussian_log_prob,
            (normal(T, B, D), normal(T, B, D), uniform(T, B, D)),
            {},
            (0, 1, 2),
        ),
        Case(distribution.gaussian_entropy, (uniform(T, B, D),), {}, (0,)),
        Case(
            distribution.gaussian_kl,
            (normal(T, B, D), uniform(T, B, D), normal(T, B, D), uniform(T, B, D)),
            {},
            (0, 1, 2, 3),
        ),
        Case(
            distribution.categorical_log_prob,
            (normal(T, B, K), draw.classes(T, B)),
            {},
            (0,),
        ),
        Case(distribution.categorical_entropy, (normal(T, B, K),), {}, (0,)),
        Case(distribution.categorical_kl, (normal(T, B, K), normal(T, B, K)), {}, (0, 1)),
        Case(
            distribution.beta_log_prob,
            (uniform(T, B, D), 1 + uniform(T, B, D), 1 + uniform(T, B, D)),
            {},
            (0, 1, 2),
        ),
        Case(distribution.beta_entropy, (1 + uniform(T, B, D), 1 + uniform(T, B, D)), {}, (0, 1)),
        Case(quantile.midpoints, (N,)),
        Case(quantile.tail_weights, (N,)),
        Case(quantile.huber_active, (normal(B, N), normal(B, N)), {"kappa": 0.3}),
        Case(quantile.monotone, (normal(B, N),), {}, (0,)),
        Case(quantile.crossing_fraction, (normal(B, N),)),
        Case(categorical.project, (normal(B), atoms), {}, (0,)),
        Case(categorical.project_distribution, (probs(B, N), normal(B, N), atoms), {}, (0, 1)),
        Case(categorical.shift_distribution, (probs(B, K), 0.1 * normal(B), atoms), {}, (0, 1)),
        Case(categorical.cross_entropy, (normal(B, K), probs(B, K)), {}, (0,)),
        Case(categorical.cross_entropy_normaliser, (K,)),
        Case(categorical.distribution_mean, (probs(B, K), atoms), {}, (0,)),
        Case(categorical.distribution_variance, (probs(B, K), atoms), {}, (0,)),
        Case(categorical.outside_support, (3 * normal(B), atoms)),
        Case(
            value_clip.limit_encoded,
            (normal(B),),
            {"limit": 0.9, "mean": 0.2, "std": 1.5},
            (0,),
        ),
        Case(twin.twin_distribution, (probs(B, 2, K), atoms), {"mode": "argmin"}, (0,), "argmin"),
        Case(twin.twin_distribution, (probs(B, 2, K), atoms), {"mode": "mixture"}, (0,), "mixture"),
        Case(twin.twin_loss, (normal(B, 2), normal(B, 2)), {}, (0, 1)),
        Case(risk.value_at_risk, (normal(B, N),), {"alpha": 0.3}, (0,)),
        Case(risk.values_at_risk, (normal(B, N),), {"alphas": (0.3, 0.5)}, (0,)),
        Case(risk.categorical_value_at_risk, (probs(B, K), atoms), {"alpha": 0.3}, (1,)),
        Case(risk.categorical_cvar, (probs(B, K), atoms), {"alpha": 0.3}, (0,)),
        Case(risk.empirical_cvar, (normal(B, 9),), {"alpha": 0.3}, (0,), "plain"),
        Case(
            risk.empirical_cvar,
            (normal(B, 9),),
            {"alpha": 0.3, "weight": uniform(B, 9)},
            (0,),
            "weighted",
        ),
        Case(risk.empirical_cvar_error, (normal(B, 9),), {"alpha": 0.3}, (0,)),
        # pairs, whose sum is the same in either order: a GPU adds in any
        Case(
            risk.empirical_cvar_error,
            (normal(B, 9),),
            {"alpha": 0.3, "group": torch.tensor([4, 0, 7, 0, 4, -2, 7, -2, 5])},
            (0,),
            "grouped",
        ),
        Case(risk.risk_advantage, (normal(B), normal(B, N)), {"alpha": 0.3}),
        Case(risk.categorical_risk_advantage, (normal(B), probs(B, K), atoms), {"alpha": 0.3}),
        Case(risk.budget_advantage, (normal(B, N), normal(B, N), normal(B)), {"alpha": 0.3}),
        Case(
            risk.categorical_budget_advantage,
            (probs(B, K), probs(B, K), atoms, normal(B)),
            {"alpha": 0.3},
        ),
        Case(statistics.moments, (normal(7, 3),), {"weight": uniform(7)}, (0,)),
        Case(statistics.merge, (moments_a, moments_b)),
        Case(statistics.variance, (moments_a,), {"ddof": 1}),
        Case(statistics.drift, (moments_a, moments_b)),
        Case(statistics.standardise, (normal(T, B, 3), normal(3), uniform(3)), {}, (0,)),
        Case(statistics.weighted_mean, (normal(T, B), uniform(T, B)), {"empty": 0.5}, (0,)),
        Case(statistics.mean_and_std, (normal(T, B), uniform(T, B)), {}, (0,)),
        Case(
            statistics.mean_and_std,
            (normal(T, B), uniform(T, B)),
            {"by_column": True},
            (0,),
            "by column",
        ),
        Case(statistics.weighted_std, (normal(T, B), uniform(T, B)), {}, (0,)),
        Case(statistics.percentile, (normal(T, B), draw.flags(T, B)), {"level": 0.3}, (0,)),
        Case(
            statistics.percentiles,
            (normal(T, B), draw.flags(T, B)),
            {"levels": (0.3, 0.9)},
            (0,),
        ),
        Case(statistics.explained_variance, (normal(T, B), normal(T, B))),
        Case(statistics.least_variance, (uniform(B),)),
        Case(statistics.slope, (normal(B, 9),), {}, (0,)),
        Case(statistics.median_absolute_deviation_std, (normal(B, 9),), {}, (0,)),
        Case(return_scale.encode, (normal(B), 0.2, 1.5), {}, (0,)),
        Case(return_scale.decode, (normal(B), 0.2, 1.5), {}, (0,)),
        Case(return_scale.re_express, (normal(B), 0.2, 1.5, -0.1, 0.7), {}, (0,)),
        Case(return_scale.popart_rescale, (normal(N, D), normal(N)), scale, (0, 1)),
        Case(return_scale.popart_rescale_affine, (normal(N), normal(N)), scale, (0, 1)),
        Case(
            return_scale.popart_rescale_utility,
            (normal(N, D),),
            {"std": 1.5, "new_std": 0.7},
            (0,),
        ),
        Case(return_scale.move_atoms, (atoms,), scale, (0,)),
        Case(return_scale.effective_std, (uniform(B),), {"floor": 0.3}, (0,)),
        Case(
            return_scale.value_target_scale,
            (uniform(B),),
            {"clip": 10.0, "floor": 0.3, "cap": 1000.0},
            (0,),
        ),
        Case(risk_gate.risk_gate, (2 * normal(B), account, limits), {}, (0,)),
        Case(perturbation.project_linf, (normal(B, N),), {"epsilon": 0.5}, (0,)),
        Case(perturbation.project_l2, (normal(B, N),), {"epsilon": 0.5}, (0,)),
        Case(perturbation.fgsm, (normal(B, N),), {"epsilon": 0.5}),
        Case(
            perturbation.apply_mask,
            (normal(B, N), normal(B, N), torch.tensor([True, False, True, False])),
            {"low": -1.0, "high": 1.0},
            (0, 1),
        ),
    ]


def _by_mode(draw: Draw) -> list[Case]:
    normal, uniform, probs, atoms = draw.normal, draw.uniform, draw.probs, draw.atoms
    tau = quantile.midpoints(N, like=atoms)
    cases: list[Case] = []
    for mode in advantage.MODES:
        options = {"mode": mode, "weight": uniform(T, B), "previous": (0.1, 2.0), "floor": 0.5}
        cases.append(Case(advantage.normalise, (normal(T, B),), options, (), mode))
    cases.append(
        Case(advantage.normalise, (normal(T, B),), {"per_env": True, "magnitude": 3.0}, (), "env")
    )
    seen = advantage.RunningMoments(*torch.tensor([2.0, 0.3, 4.0], dtype=torch.float64))
    later = advantage.RunningMoments(*torch.tensor([3.0, 0.5, 5.0], dtype=torch.float64))
    weighted = {"weight": uniform(T, B)}
    cases += [
        Case(advantage.running_moments, (normal(T, B), seen), {**weighted, "beta": 0.9}),
        Case(advantage.earlier_moments, (seen, later), {"floor": 1e-8}),
        Case(advantage.normalise_by, (normal(T, B), seen), {**weighted, "magnitude": 3.0}),
    ]
    for kappa in (0.0, 0.3):
        options = {"kappa": kappa}
        arguments = (normal(B, N), normal(B, 3), tau)
        cases.append(Case(quantile.huber_loss, arguments, options, (0,), f"kappa={kappa}"))
        single = (normal(B, N), normal(B), tau)
        cases.append(Case(quantile.level_huber_loss, single, options, (0,), f"kappa={kappa}"))
    for mode in value_clip.MODES:
        options = {"mode": mode, "epsilon": 0.2, "variance_factor": 0.5}
        arguments = (normal(B, N), normal(B, N))
        cases.append(Case(value_clip.clip_quantiles, arguments, options, (0,), mode))
    for mode in value_clip.DISTRIBUTION_MODES:
        options = {"mode": mode, "epsilon": 0.2, "variance_factor": 0.5}
        arguments = (probs(B, K), probs(B, K), atoms)
        cases.append(Case(value_clip.clip_distribution, arguments, options, (0,), mode))
    cases += [
        Case(twin.twin_value, (normal(B, 2),), {"mode": mode}, (0,), mode)
        for mode in twin.VALUE_MODES
    ]
    cases += [
        Case(twin.twin_quantiles, (normal(B, 2, N),), {"mode": mode}, (0,), mode)
        for mode in twin.QUANTILE_MODES
    ]
    return cases


def _by_kind(draw: Draw) -> list[Case]:
    normal, uniform = draw.normal, draw.uniform
    cases = [
        Case(policy.kl_estimate, (normal(T, B),), {"kind": kind}, (0,), kind)
        for kind in policy.KL_KINDS
    ]
    for kind in distribution.SQUASHES:
        options = {"kind": kind}
        cases += [
            Case(distribution.squash, (normal(B, D),), options, (0,), kind),
            Case(distribution.squash_log_det, (normal(B, D),), options, (0,), kind),
            Case(
                distribution.squashed_gaussian_log_prob,
                (normal(B, D), normal(B, D), uniform(B, D)),
                options,
                (0, 1, 2),
                kind,
            ),
            Case(
                distribution.squashed_gaussian_entropy,
                (normal(4, B, D), uniform(B, D)),
                options,
                (0, 1),
                kind,
            ),
        ]
    for estimator in risk.ESTIMATORS:
        options = {"alpha": 0.3, "estimator": estimator}
        cases.append(Case(risk.cvar, (normal(B, N),), options, (0,), estimator))
    for loss in return_scale.LOSSES:
        options = {"std": 1.5, "new_std": 0.7, "loss": loss}
        arguments = (normal(N, D), uniform(N, D))
        cases.append(Case(return_scale.popart_rescale_moments, arguments, options, (0, 1), loss))
    for norm in perturbation.NORMS:
        options = {"epsilon": 0.5, "norm": norm}
        start = (normal(B, N), uniform(B))
        cases.append(Case(perturbation.random_start, start, options, (0,), norm))
        step = (0.2 * normal(B, N), normal(B, N))
        cases.append(Case(perturbation.pgd_step, step, {**options, "step": 0.1}, (), norm))
    for gate in upgd.NORMS:
        utility = normal(T, N)
        ends = (utility.amin(), utility.amax(), utility.mean())
        cases.append(Case(upgd.gate_line, ends, {"norm": gate}, (), gate))
        cases.append(Case(upgd.step_share, (utility,), {"norm": gate}, (), gate))
    for schedule in perturbation.SCHEDULES:
        options = {"initial": 0.075, "final": 0.05, "schedule": schedule}
        progress = torch.tensor(0.1, dtype=torch.float64)
        cases.append(Case(perturbation.epsilon_at, (progress,), options, (0,), schedule))
    return cases


def _indicators(draw: Draw) -> list[Case]:
    uniform = draw.uniform
    high, low = 1.0 + uniform(24, 1), 0.2 + 0.5 * uniform(24, 1)
    mean = 0.5 * (high + low)
    bars = (mean + 0.1 * uniform(24, 1), high, low, mean - 0.1 * uniform(24, 1))
    wide = 0.5 + uniform(70, 1)  # long enough for spans of 2: 32 taps each
    return [
        Case(rolling.taps, (), {"decay": 0.5}),
        Case(rolling.window_sum, (uniform(9, 2),), {"window": 5}, (0,)),
        Case(rolling.window_mean, (uniform(9, 2),), {"window": 5}, (0,)),
        Case(rolling.window_variance, (uniform(9, 2),), {"window": 5, "ddof": 1}, (0,)),
        Case(rolling.window_max, (uniform(9, 2),), {"window": 5}, (0,)),
        Case(rolling.window_min, (uniform(9, 2),), {"window": 5}, (0,)),
        Case(rolling.decayed_sum, (uniform(9, 2),), {"decay": 0.7, "window": 5}, (0,)),
        Case(rolling.decayed_mean, (wide,), {"decay": 0.5}, (0,)),
        Case(indicators.log_return, (uniform(9, 2),), {"horizon": 3}, (0,)),
        Case(indicators.realised_volatility, (uniform(9, 2),), {"window": 4}, (0,)),
        Case(indicators.root_mean_square, (uniform(9, 2),), {"window": 4}, (0,)),
        Case(indicators.parkinson, bars[1:3], {"window": 4}, (0, 1)),
        Case(indicators.yang_zhang, bars, {"window": 4}, (0, 1, 2, 3)),
        Case(
            indicators.garch_variance,
            (draw.normal(70, 1),),
            {"omega": 0.1, "alpha": 0.1, "beta": 0.5},
            (0,),
        ),
        Case(indicators.ema, (wide,), {"span": 2}, (0,)),
        Case(indicators.ema_decay, (), {"span": 2}),
        Case(indicators.wilder_decay, (), {"period": 2}),
        Case(indicators.rsi, (wide,), {"period": 2}, (0,)),
        Case(indicators.macd, (wide,), {"fast": 1, "slow": 2, "signal": 2}, (0,)),
        Case(indicators.bollinger, (uniform(9, 2),), {"window": 4, "deviations": 2.0}, (0,)),
        Case(indicators.true_range, bars[1:], {}, (0, 1, 2)),
        Case(
            indicators.atr,
            (wide + 0.3, wide - 0.3, wide + 0.2 * uniform(70, 1)),
            {"period": 2},
            (0, 1, 2),
        ),
        Case(indicators.cci, tuple(part[:4] for part in bars[1:]), {"window": 4}, (0, 1, 2)),
        Case(indicators.obv_change, (uniform(9, 2), uniform(9, 2)), {"window": 4}, (1,)),
        Case(indicators.relative_volume, (uniform(9, 2),), {"window": 4}, (0,)),
        Case(indicators.signed_share, (uniform(9, 2), uniform(9, 2)), {"window": 4}, (0, 1)),
    ]


def _adversary(draw: Draw) -> list[Case]:
    normal, uniform = draw.normal, draw.uniform
    shapes = tuple(1 + uniform(T, B, D) for _ in range(4))
    noise = {"step": 0.025, "taken": 1}
    sizes = [
        Case(perturbation.perturbation_size, (normal(B, N),), {"norm": norm}, (0,), norm)
        for norm in perturbation.NORMS
    ]
    return [
        Case(distribution.beta_kl, shapes, {}, (0, 1, 2, 3)),
        Case(perturbation.langevin_gradient, (normal(B, N), normal(B, N)), noise, (0,)),
        Case(perturbation.ramp, (), {"update": 3, "updates": 10}),
        *sizes,
    ]


def _population(draw: Draw) -> list[Case]:
    normal, uniform = draw.normal, draw.uniform
    cases: list[Case] = []
    members, span = normal(N), {"low": 0.05, "high": 2.0}
    for mode in population.MODES:
        cases.append(Case(population.ranking, (members,), {"mode": mode}, (), mode))
        arguments = (members, uniform(N))
        cases.append(Case(population.tournament_sources, arguments, {"mode": mode}, (), mode))
        arguments = (members, torch.tensor([0.0, 0.3, 0.0, 1.5], dtype=torch.float64))
        cases.append(Case(population.limited_fitness, arguments, {"mode": mode}, (0,), mode))
    try_anew = {"resample_probability": 0.5}
    return [
        *cases,
        Case(population.truncation_count, (N,), {"ratio": 0.25}),
        Case(
            population.truncation_sources,
            (torch.tensor([2, 0, 3, 1]), uniform(N)),
            {"ratio": 0.25},
        ),
        Case(population.resampled, (uniform(N),), {**span, "is_log_scale": True}, (0,)),
        Case(population.perturbed, (uniform(N), uniform(N)), {**span, "factor": 1.2}, (0,)),
        Case(
            population.explored,
            (uniform(N), uniform(N, 3)),
            {**span, **try_anew, "factor": 1.2, "is_log_scale": False},
            (0,),
        ),
        Case(
            population.explored_choice,
            (torch.tensor([0, 1, 2, 2]), uniform(N, 3)),
            {**try_anew, "count": 3},
        ),
        Case(population.smoothed, (members, normal(N)), {"beta": 0.5}, (0, 1)),
    ]


def _gradient_noise(draw: Draw) -> list[Case]:
    uniform = draw.uniform
    count = torch.tensor([1.0, 2.0, 20.0], dtype=torch.float64)
    parts = (uniform(B), uniform(B), 0.3 * uniform(B))
    factor = {"alpha": 0.5, "floor": 0.3, "cap": 50.0}
    return [
        Case(gradient_noise.gain, (count,), {"beta": 0.9}, (0,)),
        Case(gradient_noise.weight_concentration, (count,), {"beta": 0.9}, (0,)),
        Case(gradient_noise.moving_spread, parts, {}, (0, 1, 2)),
        Case(gradient_noise.noise_variance, parts[::2], {}, (0, 1)),
        Case(gradient_noise.signal_square, parts, {}, (0, 1, 2)),
        Case(gradient_noise.noise_to_signal, parts, {"eps_rel": 1e-3}, (0, 1, 2)),
        Case(gradient_noise.noise_fraction, parts[:2], {}, (0, 1)),
        Case(gradient_noise.scaling_factor, (3 * uniform(B),), factor, (0,)),
        Case(gradient_noise.moving_median, parts, {}, (0, 1, 2)),
        Case(gradient_noise.relative_excess, (2 * uniform(B), uniform(B)), {}, (0, 1)),
        Case(gradient_noise.accumulated_variance, (uniform(B), 1 + 2 * uniform(B)), {}, (0, 1)),
    ]


TIERS = ((0.01, 0.0), (0.05, 20.0))
"""Rate and amount of a maintenance margin: 1 % up to a notional of 500, 5 % above."""


def _ledger(draw: Draw) -> list[Case]:
    normal, uniform = draw.normal, draw.uniform
    quantity, order = normal(B), normal(B)
    price, entry = 100 * uniform(B), 100 * uniform(B)
    notional = 1e5 * uniform(B)
    terms = fills.Terms(
        fee=1e-3 * uniform(B),
        half_spread=1e-3 * uniform(B),
        impact=1e-2 * uniform(B),
        lot=torch.zeros(B, dtype=torch.float64),
        tick=torch.zeros(B, dtype=torch.float64),
    )
    steps = torch.full_like(quantity, 0.25)
    tiers = tuple((torch.full_like(quantity, r), torch.full_like(quantity, a)) for r, a in TIERS)
    equity = 1e3 * uniform(B)
    return [
        Case(
            fills.order_quantity,
            (uniform(B), equity, quantity, price, notional, terms),
            {"min_rebalance": 1e-3},
            (0, 1, 2, 3, 4),
        ),
        Case(
            fills.order_quantity,
            (uniform(B), equity, quantity, price, notional, terms._replace(lot=steps)),
            {},
            (0, 1, 2, 3, 4),
            "lots",
        ),
        Case(fills.fill_price, (price, order, notional, terms), {}, (0, 1, 2)),
        Case(
            fills.fill_price,
            (price, order, notional, terms._replace(tick=steps)),
            {},
            (0, 1, 2),
            "ticks",
        ),
        Case(fills.cut_down, (normal(B), steps), {}, (0, 1)),
        Case(fills.entry_price, (quantity, entry, order, price), {}, (1, 3)),
        Case(
            fills.liquidation_price,
            (100 * normal(B), quantity),
            {"maintenance": 0.01},
            (0, 1),
        ),
        Case(
            fills.delisting_price,
            (price, quantity, notional, terms),
            {"loss": 0.0},
            (0, 1, 2),
        ),
        Case(fills.log_growth, (equity, 1e3 * uniform(B)), {"floor": 10.0}, (0, 1)),
        Case(fills.maintenance_margin, (1e3 * uniform(B), tiers), {}, (0,)),
        Case(fills.tiered_liquidation_price, (100 * normal(B), quantity, tiers), {}, (0, 1)),
        Case(
            fills.borrow_interest,
            (100 * normal(B), quantity, price, 1e-4 * uniform(B), 1e-4 * uniform(B)),
            {},
            (0, 1, 2, 3, 4),
        ),
    ]


def _rewards(draw: Draw) -> list[Case]:
    normal, uniform = draw.normal, draw.uniform
    return [
        Case(
            rewards.differential_sharpe,
            (0.01 * normal(B), 0.001 * normal(B), 1e-4 * (1.0 + uniform(B))),
            {"rate": 0.05, "least_variance": 1e-6},
            (0, 1, 2),
        ),
        Case(
            rewards.drawdown_growth,
            (
                1e3 + 1e2 * uniform(B),
                1e3 + 1e2 * uniform(B),
                1.2e3 + uniform(B),
                1.1e3 + uniform(B),
            ),
            {"penalty": 0.5},
            (0, 1, 2, 3),
        ),
    ]


def _recurrence(draw: Draw) -> list[Case]:
    normal = draw.normal
    reset = draw.flags(T, B)
    state, initial = (normal(B, D), normal(B, D)), (normal(D), normal(D))
    return [
        Case(
            recurrence.lstm_sequence,
            (normal(T, B, 4 * D), normal(4 * D, D), *state, reset, *initial),
            {},
            (0, 1, 2, 3, 5, 6),
        ),
        Case(
            recurrence.gru_sequence,
            (normal(T, B, 3 * D), normal(3 * D, D), normal(3 * D), state[0], reset, initial[0]),
            {},
            (0, 1, 2, 3, 5),
        ),
    ]


def _risk_trace(draw: Draw) -> list[Case]:
    normal, probs = draw.normal, draw.probs
    ends = (draw.flags(T, B), draw.flags(T, B))
    options = {"alpha": 0.3, "gamma": 0.9, "lam": 0.8}
    return [
        Case(
            risk.budget_trace,
            (normal(T, B), normal(T, B, N), normal(T, B, N), normal(T, B), *ends),
            options,
        ),
        Case(
            risk.categorical_budget_trace,
            (normal(T, B), probs(T, B, K), probs(T, B, K), draw.atoms, normal(T, B), *ends),
            options,
        ),
    ]


def _all_actions(draw: Draw) -> list[Case]:
    """Formulas of the values of all actions, and of a limit that they keep."""
    normal, probs, uniform = draw.normal, draw.probs, draw.uniform
    log_prob, old, gain = probs(T, B, K).log(), probs(T, B, K).log(), normal(T, B, K)
    impossible = torch.where(torch.arange(K) == 2, -torch.inf, old).log_softmax(-1)
    weight = draw.probs(9)
    stratum = torch.arange(9) < 4
    return [
        Case(policy.centred, (normal(T, B, K), probs(T, B, K)), {}, (0, 1)),
        Case(policy.expected_surrogate, (log_prob, old, gain), {"clip": 0.2}, (0,), "all possible"),
        Case(
            policy.expected_surrogate, (log_prob, impossible, gain), {"clip": 0.2}, (0,), "one not"
        ),
        Case(risk.shortfall_increment, (normal(T, B), normal(T, B)), {"level": -0.3}, (0, 1)),
        Case(risk.shortfall_level, (normal(B), normal(B)), {"limit": -0.7}, (), "limited"),
        Case(risk.shortfall_level, (normal(B), normal(B)), {"limit": 0.0}, (), "at zero"),
        Case(
            risk.shortfall_level,
            (normal(B), normal(B)),
            {"limit": 0.7, "held": -0.5},
            (),
            "by skill",
        ),
        Case(risk.account_share, (normal(T, B, K), uniform(T, B)), {}),
        Case(
            risk.mixing_share,
            (normal(B), -uniform(B), uniform(B)),
            {"most_change": 0.4},
        ),
        Case(risk.calibration_slope, (normal(B, 5), uniform(B, 5)), {"errors": 1.5}),
        Case(risk.shrink_to_mean, (normal(T, B, K), uniform(T, B)), {"share": 0.4}, (0, 1)),
        Case(risk.floor_share, (normal(B, 5), uniform(B, 5)), {"errors": 0.1}),
        Case(
            risk.pull_to_action,
            (normal(T, B, K), probs(T, B, K), torch.tensor(1)),
            {"share": 0.4},
            (0, 1),
        ),
        Case(risk.weighted_value_at_risk, (normal(9), weight), {"alpha": 0.3}, (0,)),
        Case(
            risk.stratified_cvar_error,
            (normal(9), weight, stratum),
            {"alpha": 0.3, "level": 0.2, "draws": 12},
            (0,),
            "each its own",
        ),
        Case(
            risk.stratified_cvar_error,
            (normal(9), weight, stratum),
            {
                **{"alpha": 0.3, "level": 0.2, "draws": 12},
                **{"place": torch.arange(9).flip(0) // 2, "reach": 3},
            },
            (0,),
            "near ones shared",
        ),
    ]
