"""The bugs of critics that learn tails: levels of unequal mass, rates of heads, first layers."""

from mutants.harness import Mutant
from mutants.nodes import law, unit

QUANTILE = "functional/quantile.py"
KERNEL = "functional/kernels/losses/quantile_huber.py"
TAIL = "functional/risk/tail.py"
ADVANTAGE = "functional/risk/advantage.py"
TWIN = "functional/twin.py"
CLIP = "functional/value_clip.py"
LAYERS = "modules/layers.py"
NETWORK = "modules/network.py"
CRITICS = "modules/critics.py"
AGENT = "modules/agent.py"
TARGETS = "algorithms/update/critic_targets.py"
OPTIMIZERS = "algorithms/update/optimizers.py"
ORDER = "algorithms/ppo.py"
STATISTICS = "algorithms/update/return_statistics.py"
POPART = "algorithms/update/popart.py"
RISK = "algorithms/risk/advantage.py"
READINGS = "algorithms/telemetry/risk.py"
ROLLOUT = "algorithms/telemetry/rollout.py"
CHECKS = "evaluation/calibration/checks.py"


def update(*names: str, module: str = "tail_levels") -> tuple[str, ...]:
    """Return node ids of tests of the update."""
    return unit(f"update/{module}", *names, part="algorithms")


def rates(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the optimizers."""
    return update(*names, module="optimizers")


def network(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the network."""
    return unit("network", *names, part="modules")


def critics(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the critics."""
    return unit("critics", *names, part="modules")


LEVELS = (
    # --- the formulas
    Mutant(
        "levels-tail-on-the-wrong-side",
        "levels",
        QUANTILE,
        "weight[:narrow] = TAIL_MASS / narrow",
        "weight[-narrow:] = TAIL_MASS / narrow",
        unit("levels", "test_a_quarter_of_the_levels_shares_the_worst_twentieth"),
    ),
    Mutant(
        "levels-at-the-end-of-their-cells",
        "levels",
        QUANTILE,
        "return (mass.cumsum(-1) - 0.5 * mass).to(weight.dtype)",
        "return mass.cumsum(-1).to(weight.dtype)",
        unit("levels", "test_levels_by_hand"),
    ),
    Mutant(
        "levels-target-atoms-counted-alike",
        "levels",
        KERNEL,
        "return rows.mean(0) if mass is None else mass.to(rows.dtype) @ rows",
        "return rows.mean(0)",
        unit("levels", "test_target_atoms_count_with_their_mass"),
    ),
    Mutant(
        "levels-compiled-loss-counts-alike",
        "levels",
        QUANTILE,
        "    if mass is None:\n        return (weight * size).mean((-2, -1))\n",
        "    if True:\n        return (weight * size).mean((-2, -1))\n",
        law("levels", "test_huber_loss_expects_over_the_target_distribution"),
    ),
    Mutant(
        "levels-monotone-mean-without-mass",
        "levels",
        QUANTILE,
        "above - expectation(above, weight=weight).unsqueeze(-1))",
        "above - expectation(above).unsqueeze(-1))",
        law("levels", "test_monotone_quantiles_have_their_mean_and_their_first_line"),
    ),
    Mutant(
        "levels-mass-left-behind-by-the-sort",
        "levels",
        TAIL,
        "share = unequal(weight.double()[order], alpha)",
        "share = unequal(weight.double().expand(order.shape), alpha)",
        law("levels", "test_cvar_fills_the_tail_by_mass"),
    ),
    Mutant(
        "levels-value-at-risk-of-unsorted-mass",
        "levels",
        TAIL,
        "_ranks_reaching(weight[order], alphas)",
        "_ranks_reaching(weight.expand(order.shape), alphas)",
        unit("levels", "test_the_value_at_risk_reads_by_mass"),
    ),
    Mutant(
        "levels-shortfall-of-equal-atoms",
        "levels",
        ADVANTAGE,
        "(quantiles.detach() - level).clamp(max=0.0), weight=weight)",
        "(quantiles.detach() - level).clamp(max=0.0))",
        law("levels", "test_the_budget_advantage_by_mass_equals_its_definition"),
    ),
    Mutant(
        "levels-twins-compared-without-mass",
        "levels",
        TWIN,
        "return _choose(quantiles, expectation(quantiles, weight=weight))",
        "return _choose(quantiles, expectation(quantiles))",
        unit("levels", "test_the_mean_decides_between_twins_by_mass"),
    ),
    Mutant(
        "levels-old-mean-without-mass",
        "levels",
        CLIP,
        "old_mean = expectation(old, weight=weight)",
        "old_mean = expectation(old)",
        law("levels", "test_clipping_holds_the_moments_by_mass"),
    ),
    # --- the learner
    Mutant(
        "levels-loss-at-the-midpoints",
        "levels",
        CRITICS,
        "    if weight is not None:\n        return quantile.levels_of(weight)\n",
        "",
        update("test_critics_learn_their_levels_from_targets_by_mass"),
    ),
    Mutant(
        "levels-targets-without-mass",
        "levels",
        TARGETS,
        "return None if target.shape[-1] == 1 else agent.network.critic.weights()",
        "return None",
        update("test_critics_learn_their_levels_from_targets_by_mass"),
    ),
    Mutant(
        "levels-means-without-mass",
        "levels",
        CRITICS,
        "return quantile.expectation(predicted, weight=self.weights())",
        "return quantile.expectation(predicted)",
        critics("test_means_and_values_are_read_by_mass"),
    ),
    Mutant(
        "levels-return-scale-without-mass",
        "levels",
        "algorithms/update/assessment.py",
        "rollout.weight.flatten(), atom_weights(agent, outcomes))",
        "rollout.weight.flatten(), None)",
        update("test_an_update_moves_the_return_scale_by_mass"),
    ),
    Mutant(
        "levels-rows-of-unequal-atoms-count-less",
        "levels",
        STATISTICS,
        "wide.double() * (atom_weight * rows.shape[-1])",
        "wide.double() * atom_weight",
        update("test_return_statistics_weigh_atoms"),
    ),
    Mutant(
        "levels-mixture-of-states-not-of-mass-one",
        "levels",
        RISK,
        "weight = weight.repeat(len(first)) / len(first)",
        "weight = weight.repeat(len(first))",
        update("test_the_predicted_tail_is_that_of_the_mixture_by_mass"),
    ),
    Mutant(
        "levels-resolution-of-equal-cells",
        "levels",
        READINGS,
        "equal if own is None else own[0]",
        "equal",
        update("test_metrics_read_by_mass"),
    ),
    Mutant(
        "levels-quartiles-of-equal-atoms",
        "levels",
        ROLLOUT,
        "alphas=(0.25, 0.5, 0.75), weight=own)",
        "alphas=(0.25, 0.5, 0.75))",
        update("test_metrics_read_by_mass"),
    ),
    Mutant(
        "levels-of-an-earlier-file-taken-from-the-default",
        "levels",
        AGENT,
        '{"levels": "uniform", **critic}',
        '{"levels": "tail", **critic}',
        unit(
            "agent",
            "test_the_quantiles_of_an_earlier_version_are_at_equal_levels",
            part="modules",
        ),
    ),
    Mutant(
        "levels-of-mixed-twins-too-few",
        "levels",
        CRITICS,
        "count = self.config.critics * self.config.num_quantiles",
        "count = self.config.num_quantiles",
        critics("test_the_levels_of_mixed_twins_are_those_of_all_their_quantiles"),
    ),
    Mutant(
        "levels-forecast-of-equal-atoms",
        "levels",
        CHECKS,
        "risk.cvar(quantiles, alpha=alpha, estimator=estimator, weight=mass)",
        "risk.cvar(quantiles, alpha=alpha, estimator=estimator)",
        unit(
            "calibration/checks",
            "test_the_predicted_tail_goes_by_the_mass_of_the_levels",
            part="evaluation",
        ),
    ),
    # --- rates and first layers
    Mutant(
        "rates-factor-lost-by-the-schedule",
        "rates",
        ORDER,
        "own = rate * group.get(RATE_FACTOR, 1.0)",
        "own = rate",
        rates("test_critics_take_their_multiple_of_the_rate"),
    ),
    Mutant(
        "rates-critics-trunk-left-out",
        "rates",
        NETWORK,
        "own = [] if self.critic_trunk is None else list(self.critic_trunk.parameters())",
        "own: list[nn.Parameter] = []",
        rates("test_critics_take_their_multiple_of_the_rate"),
    ),
    Mutant(
        "rates-actor-takes-the-factor-too",
        "rates",
        OPTIMIZERS,
        'return [{"params": others}, ',
        'return [{"params": others, "lr": rate, RATE_FACTOR: factor}, ',
        rates("test_one_step_of_the_critics_is_as_many_times_as_long"),
    ),
    Mutant(
        "layers-first-one-stays-linear",
        "layers",
        LAYERS,
        "gain=unit_gain(a, b) if unit_first and place == 0 else HIDDEN_GAIN",
        "gain=HIDDEN_GAIN",
        network("test_spread_units_read_a_variance_of_one_and_bend_in_different_places"),
    ),
    Mutant(
        "layers-few-units-made-smaller",
        "layers",
        LAYERS,
        "return math.sqrt(max(outputs / inputs, 1.0))",
        "return math.sqrt(outputs / inputs)",
        network("test_fewer_units_than_inputs_read_a_variance_of_one_too"),
    ),
    Mutant(
        "layers-biases-from-the-global-generator",
        "layers",
        LAYERS,
        "nn.init.uniform_(layer.bias, -BIAS_REACH, BIAS_REACH, generator=generator)",
        "nn.init.uniform_(layer.bias, -BIAS_REACH, BIAS_REACH)",
        network("test_spread_weights_come_from_the_generator_alone"),
    ),
    Mutant(
        "layers-heads-bend-in-one-place",
        "layers",
        NETWORK,
        'spread = len(network.head_sizes) if network.first_layer == "spread" else 0',
        "spread = 0",
        network("test_spread_units_read_a_variance_of_one_and_bend_in_different_places"),
    ),
)
