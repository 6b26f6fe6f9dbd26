"""The bugs of what a run reports, schedules and restores."""

from mutants.harness import Mutant
from mutants.nodes import unit

LEARNING = "algorithms/telemetry/learning.py"
PLAYED = "algorithms/telemetry/rollout.py"
TELEMETRY = "algorithms/telemetry/metrics.py"
ENTROPY = "algorithms/update/entropy_schedule.py"
STATISTICS = "algorithms/update/return_statistics.py"
CHECKPOINT = "algorithms/run/checkpoint.py"
ALARMS = "monitors/alarms.py"
ALARM_RULES = "monitors/alarm_rules.py"


def run(name: str, *tests: str) -> tuple[str, ...]:
    """Return node ids of unit tests of one module of a run."""
    return unit(name, *tests, part="algorithms")


RESTORED = run("run/checkpoint", "test_a_restored_learner_computes_what_the_first_one_did")

MONITORS = (
    # --- gradients
    Mutant(
        "gradient-norms-are-squares",
        "S0-7 S2-7",
        LEARNING,
        "return norms[:, places].square().sum(-1).sqrt()",
        "return norms[:, places].square().sum(-1)",
        run("telemetry/metrics", "test_twin_critics_gradient_norms_logged"),
    ),
    Mutant(
        "critic-heads-sought-by-name",
        "S0-7 X17",
        LEARNING,
        "return [order[name] for name in wanted]",
        'return [order[name] for name in wanted if "critic_head" in name]',
        run("telemetry/metrics", "test_twin_critics_gradient_norms_logged"),
    ),
    Mutant(
        "gradient-norms-added",
        "S3-7",
        LEARNING,
        "return norms[:, places].square().sum(-1).sqrt()",
        "return norms[:, places].sum(-1)",
        run("telemetry/metrics", "test_each_layer_of_a_memory_has_the_root_of_its_own_squares"),
    ),
    # --- memory, observations, costs, clips
    Mutant(
        "first-layer-read-for-all",
        "S0-9",
        PLAYED,
        "        hidden = parts[:, 0].double()\n",
        "        hidden = state[:, 0, 0].double()\n",
        run("telemetry/metrics", "test_each_layer_reports_its_own_hidden_state"),
    ),
    Mutant(
        "drift-of-columns-nobody-scales",
        "S2-1 S2-opt1",
        PLAYED,
        "places = [place for place, name in names if name not in spec.unscaled]",
        "places = [place for place, name in names]",
        run("telemetry/metrics", "test_drift_is_that_of_the_columns_which_are_scaled"),
    ),
    Mutant(
        "costs-that-are-not-finite-averaged",
        "S3-11",
        PLAYED,
        "known = used & fraction.isfinite()",
        "known = used",
        run("telemetry/metrics", "test_costs_that_are_not_finite_are_counted_and_left_out"),
    ),
    Mutant(
        "dominant-clip-is-the-rarest",
        "S4-V7",
        TELEMETRY,
        "top = max(fractions)",
        "top = min(fractions)",
        run("telemetry/metrics", "test_the_dominant_clip_is_named_by_its_place"),
    ),
    # --- alarms
    Mutant(
        "alarm-at-every-update",
        "S4-R1",
        ALARMS,
        "if streak == rule.patience:",
        "if streak >= rule.patience:",
        unit(
            "alarms",
            "test_an_alarm_sounds_beyond_its_threshold_and_only_when_that_begins",
            part="monitors",
        ),
    ),
    Mutant(
        "spread-alarm-with-fixed-bounds",
        "X20",
        ALARMS,
        "relative = spread / usual if usual > 0.0 else math.nan",
        "relative = spread",
        unit(
            "alarms",
            "test_the_spread_of_returns_is_judged_by_its_own_median_in_any_unit",
            part="monitors",
        ),
    ),
    Mutant(
        "floor-hides-the-gain",
        "S4-1",
        STATISTICS,
        "floor=torch.finfo(torch.float64).tiny,",
        "floor=self._floor(),",
        run("update/return_statistics", "test_the_reported_gain_sees_no_floor_and_has_a_cap"),
    ),
    # --- entropy
    Mutant(
        "every-plateau-starts-the-decay",
        "S0-5 S2-5",
        ENTROPY,
        "if self.plateau and self.start is None and self._may_fall(update):",
        "if self.plateau and self._may_fall(update):",
        run("update/entropy_schedule", "test_a_second_plateau_does_not_start_it_again"),
    ),
    Mutant(
        "entropy-floor-dropped",
        "S0-5",
        ENTROPY,
        "floored = max(nominal, config.ent_coef_min)",
        "floored = nominal",
        run("update/entropy_schedule", "test_the_floor_wins_over_the_end"),
    ),
    # --- a run that goes on
    Mutant(
        "return-statistics-not-restored",
        "M14",
        CHECKPOINT,
        '        "returns": ppo.returns.load_state_dict,\n',
        "",
        RESTORED,
    ),
    Mutant(
        "divergence-control-not-restored",
        "M15",
        CHECKPOINT,
        '        "kl": ppo.kl.load_state_dict,\n',
        "",
        RESTORED,
    ),
    Mutant(
        "observation-statistics-not-restored",
        "M47",
        CHECKPOINT,
        "        ppo.agent.load_state_dict(saved)\n",
        '        own = {k: v for k, v in saved.items() if not k.startswith("observation_scale")}\n'
        "        ppo.agent.load_state_dict(own, strict=False)\n",
        RESTORED,
    ),
    Mutant(
        "random-streams-not-restored",
        "M48",
        CHECKPOINT,
        '        ppo.generators.restore(state["generators"])\n',
        "        pass\n",
        RESTORED,
    ),
    # --- alarms of the gradient scaler
    Mutant(
        "saturated-scaler-not-reported",
        "VGS alarms",
        ALARM_RULES,
        "share >= SATURATED and",
        "share > SATURATED and",
        unit("alarms", "test_a_patient_alarm_waits_for_its_streak", part="monitors"),
    ),
    Mutant(
        "idle-scaler-not-reported",
        "VGS alarms",
        ALARM_RULES,
        "math.nan) >= IDLE",
        "math.nan) > IDLE",
        unit("alarms", "test_a_patient_alarm_waits_for_its_streak", part="monitors"),
    ),
)
