"""The bugs of settings that do less, more or something else than they say."""

from mutants.harness import Mutant
from mutants.nodes import unit

RULES = "algorithms/config/contradictions.py"
CONFIG = "algorithms/config/__init__.py"
START = "algorithms/run/start_checks.py"
TRAINER = "algorithms/trainer.py"
STATISTICS = "algorithms/update/return_statistics.py"
UNITS = "algorithms/update/popart.py"
ENTROPY = "algorithms/update/entropy_schedule.py"
DERIVE = "algorithms/config/derive.py"
SCHEDULES = "algorithms/update/schedules.py"
REPORT = "algorithms/telemetry/rollout.py"
ALARMS = "monitors/alarm_rules.py"
QUANTILE = "functional/quantile.py"
CRITICS = "modules/critics.py"
SCALE = "modules/scale.py"
AGENT = "modules/agent.py"


def learner(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of the learner."""
    return unit(name, *tests, part="algorithms")


def contradiction(name: str) -> tuple[str, ...]:
    """Return the node id of one refusal."""
    return learner(
        "config/contradictions", f"test_a_contradiction_names_both_settings_and_the_way_out[{name}]"
    )


APPLIED = learner("update/popart", "test_the_gain_that_is_applied_is_bounded_by_its_cap")
NO_BONUS = learner(
    "update/entropy_schedule", "test_a_coefficient_of_zero_is_no_bonus_at_any_update"
)
WHOLE_RUN = learner(
    "update/entropy_schedule", "test_the_decay_ends_with_the_last_update_of_the_run"
)
PAIRS = learner("config/contradictions", "test_what_asks_for_something_needs_its_switch")

SETTINGS = (
    # --- the scale of advantages
    Mutant(
        "slow-scale-not-derived-beside-a-limit",
        "advantages",
        CONFIG,
        "return self.risk.acts and self.ppo.normalize_advantage",
        "return False",
        learner("config/derive", "test_advantages_have_a_slow_scale_where_risk_acts"),
    ),
    Mutant(
        "bound-on-advantages-beside-a-limit-accepted",
        "advantages",
        RULES,
        "if config.risk.acts and ppo.adv_clip is not None:",
        "if False:",
        contradiction("a bound on advantages beside a limit"),
    ),
    # --- the gain from returns to targets
    Mutant(
        "gain-is-not-bounded-at-all",
        "settings",
        STATISTICS,
        "return max(config.std_floor, std_at_cap(config))",
        "return config.std_floor",
        APPLIED,
    ),
    Mutant(
        "gain-bounded-only-where-it-is-reported",
        "settings",
        REPORT,
        '"train/value_target_scale": 1.0 / scale.std,',
        '"train/value_target_scale": min(10.0, float(1.0 / scale.std)),',
        APPLIED,
    ),
    Mutant(
        "gain-bounded-in-encoding-only",
        "settings",
        SCALE,
        "return return_scale.encode(returns, self.mean, self.std)",
        "return return_scale.encode(returns, self.mean, self.std.clamp(min=0.01))",
        APPLIED,
    ),
    Mutant(
        "gain-of-the-first-rewards-unbounded",
        "settings",
        UNITS,
        "scale.std.fill_(max(std, least_std(config.returns)) * ",
        "scale.std.fill_(std * ",
        learner("update/popart", "test_the_first_units_keep_the_gain_below_its_cap"),
    ),
    Mutant(
        "gain-bound-forgets-the-unit-of-scale",
        "settings",
        STATISTICS,
        "return 1.0 / (deviations_per_unit(config) * config.value_target_scale_cap)",
        "return 1.0 / config.value_target_scale_cap",
        learner(
            "update/return_statistics",
            "test_no_spread_is_so_small_that_the_gain_passes_its_cap",
        ),
    ),
    Mutant(
        "gain-of-a-frozen-scale-unbounded",
        "settings",
        STATISTICS,
        "self._number(now.std).clamp(min=least_std(config)))",
        "self._number(now.std))",
        learner("update/return_statistics", "test_a_frozen_scale_from_elsewhere_is_bounded_too"),
    ),
    Mutant(
        "gain-alarm-at-constant-returns",
        "settings",
        ALARMS,
        "return rounding < spread < metrics",
        "return spread < metrics",
        unit("alarms", "test_returns_that_do_not_vary_have_no_unit_to_change", part="monitors"),
    ),
    # --- monotone quantiles
    Mutant(
        "monotone-quantiles-not-centred",
        "2.5",
        QUANTILE,
        "above - expectation(above, weight=weight).unsqueeze(-1)",
        "above",
        unit(
            "critics",
            "test_monotone_quantiles_begin_around_zero_and_two_units_wide",
            part="modules",
        ),
    ),
    Mutant(
        "monotone-quantiles-widen-with-their-number",
        "2.5",
        QUANTILE,
        "softplus(raw[..., 1:] + _first_bias(raw, weight))",
        "softplus(raw[..., 1:])",
        unit(
            "critics",
            "test_monotone_quantiles_begin_around_zero_and_two_units_wide",
            part="modules",
        ),
    ),
    Mutant(
        "monotone-quantiles-begin-with-large-weights",
        "2.5",
        CRITICS,
        "gain=MONOTONE_GAIN if self._is_monotone else 1.0,",
        "gain=1.0,",
        unit(
            "critics",
            "test_monotone_quantiles_begin_around_zero_and_two_units_wide",
            part="modules",
        ),
    ),
    Mutant(
        "monotone-quantiles-of-earlier-versions-misread",
        "2.5",
        AGENT,
        "        if missing:\n",
        "        if False:\n",
        unit(
            "agent",
            "test_monotone_quantiles_of_an_earlier_version_are_refused_and_plain_ones_are_not",
            part="modules",
        ),
    ),
    # --- entropy
    Mutant(
        "entropy-of-zero-rises-to-its-end",
        "2.14",
        ENTROPY,
        "min(FINAL, config.ent_coef) if final is None",
        "FINAL if final is None",
        NO_BONUS,
    ),
    Mutant(
        "entropy-of-zero-has-a-floor",
        "2.14",
        ENTROPY,
        "min(FLOOR, config.ent_coef, self.final) if floor is None",
        "FLOOR if floor is None",
        NO_BONUS,
    ),
    Mutant(
        "entropy-floor-above-a-start-of-zero",
        "2.14",
        ENTROPY,
        "min(FLOOR, config.ent_coef, self.final) if floor is None",
        "min(FLOOR, self.final) if floor is None",
        learner("update/entropy_schedule", "test_what_is_not_set_is_never_above_what_is"),
    ),
    Mutant(
        "entropy-boost-of-zero-is-no-number",
        "2.14",
        ENTROPY,
        "floored * self._boost() if floored > 0.0 else 0.0",
        "floored * self._boost()",
        NO_BONUS,
    ),
    Mutant(
        "entropy-decay-counts-400-updates",
        "2.14",
        ENTROPY,
        "steps = max(self.updates - 1 - begin, 1)",
        "steps = 400",
        WHOLE_RUN,
    ),
    Mutant(
        "entropy-decay-ends-after-the-run",
        "2.14",
        ENTROPY,
        "steps = max(self.updates - 1 - begin, 1)",
        "steps = max(self.updates - begin, 1)",
        WHOLE_RUN,
    ),
    Mutant(
        "entropy-decay-from-a-plateau-outlasts-the-run",
        "2.14",
        ENTROPY,
        "steps = max(self.updates - 1 - begin, 1)",
        "steps = max(self.updates - 1, 1)",
        learner(
            "update/entropy_schedule",
            "test_a_decay_from_a_plateau_ends_with_the_last_update_too",
        ),
    ),
    Mutant(
        "run-without-its-incomplete-update",
        "2.14",
        SCHEDULES,
        "return math.ceil(total_steps / (config.n_steps * config.n_envs))",
        "return total_steps // (config.n_steps * config.n_envs)",
        learner("update/schedules", "test_a_run_has_as_many_updates_as_its_steps_need"),
    ),
    Mutant(
        "imitation-waits-for-a-million-steps",
        "2.13",
        DERIVE,
        "warmup = ppo.total_steps * _BC_WARMUP_SHARE",
        "warmup = 200_000",
        learner(
            "config/derive",
            "test_imitation_falls_from_a_fifth_of_the_run_to_its_end",
        ),
    ),
    Mutant(
        "imitation-falls-beyond-the-run",
        "2.13",
        DERIVE,
        "max(ppo.total_steps - round(warmup), 0)",
        "ppo.total_steps",
        learner(
            "config/derive",
            "test_imitation_falls_from_a_fifth_of_the_run_to_its_end",
        ),
    ),
    # --- contradictions
    Mutant(
        "contradictions-accepted",
        "settings",
        CONFIG,
        "        contradictions.check(self)\n",
        "",
        PAIRS,
    ),
    Mutant(
        "contradictions-of-switches-accepted",
        "settings",
        RULES,
        "if value == default or value in rule.off:",
        "if True:",
        PAIRS,
    ),
    Mutant(
        "contradictions-only-one-is-told",
        "settings",
        RULES,
        "    if len(problems) == 1:",
        "    if problems:",
        learner("config/contradictions", "test_several_contradictions_are_told_at_once"),
    ),
    Mutant(
        "rate-bounds-the-wrong-way-round-accepted",
        "settings",
        RULES,
        "if high is not None and high < low:",
        "if False:",
        contradiction("rate bounds the wrong way round"),
    ),
    Mutant(
        "rate-above-its-bound-accepted",
        "settings",
        RULES,
        "elif high is not None and not is_open(ppo.learning_rate) and ppo.learning_rate > high:",
        "elif False:",
        contradiction("a rate above its bound"),
    ),
    Mutant(
        "freeze-within-the-warm-up-accepted",
        "settings",
        RULES,
        "frozen is not None and frozen <= warmup",
        "frozen is not None and frozen < warmup",
        contradiction("frozen before the end of the warm-up"),
    ),
    Mutant(
        "minibatch-of-one-sequence-accepted",
        "2.15",
        RULES,
        "or count % size != 1:",
        "or count % size != 0:",
        contradiction("a last minibatch of one column"),
    ),
    Mutant(
        "entropy-below-its-floor-accepted",
        "2.14",
        RULES,
        "if value is not None and value < floor:",
        "if False:",
        contradiction("an end below the floor"),
    ),
    Mutant(
        "warm-up-of-no-updates-accepted",
        "settings",
        RULES,
        "if _value(config, updates) or value in",
        "if True or value in",
        contradiction("a warm-up of no updates"),
    ),
    Mutant(
        "targets-longer-than-a-rollout-accepted",
        "settings",
        RULES,
        "if chosen and not is_open(rows) and steps > rows:",
        "if False:",
        contradiction("targets longer than a rollout"),
    ),
    Mutant(
        "device-of-any-name-accepted",
        "settings",
        CONFIG,
        "if not _DEVICE.fullmatch(name):",
        "if not name:",
        learner(
            "config/contradictions",
            "test_a_name_of_no_device_is_refused_with_those_there_are",
        ),
    ),
    Mutant(
        "device-that-is-not-there-accepted",
        "settings",
        START,
        'if name in devices or (name == "cuda" and count):',
        'if name.startswith(("cpu", "cuda")):',
        learner(
            "run/start_checks",
            "test_a_device_that_is_not_there_is_refused_with_those_that_are",
        ),
    ),
    Mutant(
        "start-checked-after-the-folder-is-made",
        "settings",
        TRAINER,
        "        check_start(config)\n",
        "",
        learner("run/start_checks", "test_a_run_that_cannot_start_leaves_nothing_behind"),
    ),
)
