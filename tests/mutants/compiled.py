"""The bugs of steps and losses that are compiled on a CPU."""

from mutants.harness import Mutant
from mutants.nodes import unit

COMPILER = "core/machine_code/graph_compiler.py"
LOSSES = "algorithms/update/compiled.py"


def compiled(*tests: str) -> tuple[str, ...]:
    """Return node ids of the tests of compiled updates."""
    return unit("update/compiled", *tests, part="algorithms")


RESUMED = compiled("test_a_resumed_run_is_the_run_that_never_stopped")
CHANGES = compiled(
    "test_a_number_that_changes_acts_in_losses_that_are_compiled_already",
)
IN_PLACE = unit(
    "graph_compiler",
    "test_what_stays_in_place_is_read_anew_and_draws_are_those_of_eager_calls",
    part="core/machine_code",
)

HUBER = "functional/kernels/losses/traced_huber.py"
ROWS = "functional/kernels/layers/lstm_rows.cpp"
VECTORS = "core/machine_code/vectors.h"
STEP = "optim/fused/whole_step.cpp"
CALLS = "optim/fused/whole_step.py"
OF_ROWS = unit(
    "kernels/lstm_rows",
    "test_values_and_gradients_are_those_of_the_plain_layer",
    "test_a_small_input_of_a_squashed_gate_keeps_all_its_digits",
)


def whole_step(*tests: str) -> tuple[str, ...]:
    """Return node ids of the tests of a step in C++."""
    return unit("whole_step", *tests, part="optim")


DRAWS = unit(
    "normal",
    "test_numbers_and_state_are_those_of_torch_whatever_was_drawn_before",
    part="optim",
)
FIFTY = whole_step("test_fifty_steps_are_the_eager_ones")
REFUSED = whole_step("test_a_refused_step_changes_no_bit_but_the_count")

PRECISION = unit(
    "precision",
    "test_members_side_by_side_leave_each_other_the_precision_that_they_train_in",
    "test_an_evaluation_waits_for_updates_and_later_updates_for_it",
    part="core",
)

COMPILED = (
    Mutant(
        "traced-huber-slope-not-divided-by-kappa",
        "Speed, CPU",
        HUBER,
        "slope = (weight * inner).sum(-2) * unit / count",
        "slope = (weight * inner).sum(-2) / count",
        unit("kernels/traced_huber", "test_the_loss_is_that_of_the_oracle"),
    ),
    Mutant(
        "traced-huber-masses-in-another-order-than-targets",
        "Speed, CPU",
        HUBER,
        "mass.to(u.dtype).flip(-1).unsqueeze(-1)",
        "mass.to(u.dtype).unsqueeze(-1)",
        unit("kernels/traced_huber", "test_loss_slope_and_share_are_those_of_calls"),
    ),
    Mutant(
        "levels-of-a-loaded-agent-are-what-lay-in-memory",
        "Speed, CPU",
        "modules/agent.py",
        "        agent.network.critic.fill_levels()\n",
        "",
        unit(
            "agent",
            "test_the_quantiles_of_an_earlier_version_are_at_equal_levels",
            part="modules",
        ),
    ),
    Mutant(
        "whole-step-clip-lengthens-short-gradients",
        "Speed, CPU",
        STEP,
        "std::min(own.bound / (report->raw_norm + 1e-6), 1.0)",
        "own.bound / (report->raw_norm + 1e-6)",
        FIFTY,
    ),
    Mutant(
        "whole-step-takes-what-is-not-finite",
        "Speed, CPU",
        STEP,
        "report->refused = bad > 0;",
        "report->refused = bad > 9;",
        REFUSED,
    ),
    Mutant(
        "whole-step-refused-makes-state",
        "Speed, CPU",
        CALLS,
        "        if not bool(refused):\n",
        "        _ = [optimizer.state_of(each.param) for each in given]\n"
        "        if not bool(refused):\n",
        REFUSED,
    ),
    Mutant(
        "whole-step-range-with-lanes-beyond-the-end",
        "Speed, CPU",
        STEP,
        "if (left < LANES)\n",
        "if (left < 0)\n",
        whole_step("test_utilities_of_one_sign_have_no_range_beyond_their_own"),
    ),
    Mutant(
        "whole-step-learns-from-what-it-cannot-measure",
        "Speed, CPU",
        STEP,
        "const bool learns = peak <= own.limit && ",
        "const bool learns = peak >= 0.0f && ",
        whole_step(
            "test_a_gradient_that_the_scaler_cannot_measure_is_counted_and_not_learned_from"
        ),
    ),
    Mutant(
        "whole-step-median-moves-in-the-warm-up",
        "Speed, CPU",
        STEP,
        "later > 0.0 ? moved_median(median[row], variance, step) : variance",
        "moved_median(median[row], variance, step)",
        whole_step("test_steps_equal_both_oracles"),
    ),
    Mutant(
        "whole-step-goes-unseen-by-hooks",
        "Speed, CPU",
        CALLS,
        "optimizer.step_by(lambda: self._advance(optimizer, given, seen, report))",
        "self._advance(optimizer, given, seen, report)",
        whole_step("test_hooks_and_schedulers_see_a_step_and_its_settings_are_those_after_them"),
    ),
    Mutant(
        "draws-leave-the-last-ones-as-they-are",
        "Speed, CPU",
        STEP,
        "if (count % (2 * HALF) == 0) return;",
        "if (count > 0) return;",
        DRAWS,
    ),
    Mutant(
        "draws-begin-with-words-that-were-taken",
        "Speed, CPU",
        STEP,
        "            state_->next += some;\n",
        "",
        DRAWS,
    ),
    Mutant(
        "draws-are-not-compared-with-those-of-torch",
        "Speed, CPU",
        "optim/fused/normal.py",
        "            self._fits = self._is_torchs()\n",
        "            self._fits = True\n",
        unit("normal", "test_torch_draws_where_its_numbers_would_be_others", part="optim"),
    ),
    Mutant(
        "whole-step-forgets-the-scale-of-a-step",
        "Speed, CPU",
        CALLS,
        "if not isinstance(optimizer, UtilityOptimizer) or optimizer.step_scale:",
        "if not isinstance(optimizer, UtilityOptimizer):",
        whole_step("test_what_the_machine_code_does_not_know_is_done_by_calls"),
    ),
    Mutant(
        "rows-of-an-lstm-learn-through-a-reset",
        "Speed, CPU",
        ROWS,
        "dh[b * width + u] = dc[b * width + u] = 0.0f;",
        "dc[b * width + u] = 0.0f;",
        OF_ROWS,
    ),
    Mutant(
        "rows-of-an-lstm-start-from-the-row-before-a-reset",
        "Speed, CPU",
        ROWS,
        "const float* c = fresh ? initial + width : cell + b * width;",
        "const float* c = cell + b * width;",
        OF_ROWS,
    ),
    Mutant(
        "rows-of-an-lstm-lose-the-digits-of-small-inputs",
        "Speed, CPU",
        VECTORS,
        "return p * power + (power - 1.0f);",
        "return (p + 1.0f) * power - 1.0f;",
        OF_ROWS,
    ),
    Mutant(
        "compiled-by-two-threads-at-a-time",
        "Speed, CPU",
        COMPILER,
        "_COMPILING = threading.RLock()",
        "_COMPILING = threading.Semaphore(9)",
        unit(
            "graph_compiler",
            "test_threads_compile_one_after_the_other",
            part="core/machine_code",
        ),
    ),
    Mutant(
        "compiled-draws-from-a-distribution-that-is-gone",
        "Speed, CPU",
        COMPILER,
        "    if tensors > filled:\n",
        "    if tensors > 9:\n",
        unit(
            "graph_compiler",
            "test_a_draw_from_a_computed_distribution_is_refused",
            part="core/machine_code",
        ),
    ),
    Mutant(
        "compiled-in-another-precision-than-calls",
        "Speed, CPU",
        LOSSES,
        '    if config.precision == "float32":\n',
        '    if config.precision != "tf32":\n',
        compiled("test_another_precision_than_float32_stays_eager"),
    ),
    Mutant(
        "compiled-environments-are-called-in-a-part",
        "Speed, CPU",
        "market/simulator/simulator.py",
        "        if self.is_compiled:\n",
        "        if columns.width > columns.whole:\n",
        unit(
            "simulator/compiled",
            "test_some_of_the_environments_are_compiled_where_all_are",
            part="market",
        ),
    ),
    Mutant(
        "precision-taken-from-who-still-trains",
        "Speed, GPU",
        "core/precision.py",
        "            if not self._users:\n                torch.",
        "            if self._users >= 0:\n                torch.",
        PRECISION[:1],
    ),
    Mutant(
        "precision-of-an-evaluation-is-that-of-an-update",
        "Speed, GPU",
        "core/precision.py",
        "lambda: not self._users or matrices.allow_tf32 == allowed",
        "lambda: True",
        PRECISION[1:],
    ),
    Mutant(
        "compiled-draws-move-the-generator",
        "Speed, CPU",
        COMPILER,
        "        generator.set_state(state)\n",
        "        pass\n",
        IN_PLACE,
    ),
    Mutant(
        "compiled-draws-once-for-all-calls",
        "Speed, CPU",
        COMPILER,
        "numbers = [draw.again() for draw in draws]",
        "numbers = [draw.like for draw in draws]",
        IN_PLACE,
    ),
    Mutant(
        "compiled-weights-are-those-of-the-recording",
        "Speed, CPU",
        COMPILER,
        "            tensor: Tensor = getattr(graph, node.target).detach()\n",
        "            tensor: Tensor = getattr(graph, node.target).detach().clone()\n",
        IN_PLACE,
    ),
    Mutant(
        "compiled-view-of-a-copy",
        "Speed, CPU",
        COMPILER,
        "            tensor = node.target(values[node.args[0]], *node.args[1:])\n",
        "            tensor = node.target(values[node.args[0]], *node.args[1:]).clone()\n",
        unit(
            "graph_compiler",
            "test_a_view_of_what_stays_in_place_is_made_once",
            part="core/machine_code",
        ),
    ),
    Mutant(
        "compiled-stays-traced-after-the-recording",
        "Speed, CPU",
        COMPILER,
        "        _THREAD.recording = False\n",
        "        pass\n",
        IN_PLACE,
    ),
    Mutant(
        "compiled-coefficients-are-those-of-the-first-call",
        "Speed, CPU",
        LOSSES,
        "                    now._replace(**each),\n",
        "                    now,\n",
        CHANGES,
    ),
    Mutant(
        "compiled-number-takes-the-place-of-another",
        "Speed, CPU",
        LOSSES,
        '_NUMBERS = ("clip_range", "vf_coef", "bc_coef", "ent_coef", "kl_beta", "legacy_risk")',
        '_NUMBERS = ("clip_range", "vf_coef", "bc_coef", "ent_coef", "kl_beta")',
        CHANGES,
    ),
    Mutant(
        "compiled-flags-share-one-program",
        "Speed, CPU",
        LOSSES,
        "        form = (now.trains_policy, now.clips_values, left_out, *shapes)\n",
        "        form = (now.clips_values, left_out, *shapes)\n",
        compiled("test_other_flags_are_other_losses"),
    ),
    Mutant(
        "compiled-gradient-of-a-part-replaces-the-others",
        "Speed, CPU",
        LOSSES,
        "gradient if weight.grad is None else weight.grad.add_(gradient)",
        "gradient",
        compiled("test_recorded_updates_are_eager_updates[market]"),
    ),
    Mutant(
        "compiled-rows-in-another-order",
        "Speed, CPU",
        "algorithms/update/rollout.py",
        "        self._rows.append(row)\n",
        "        self._rows.insert(0, row)\n",
        compiled("test_recorded_updates_are_eager_updates[pendulum]"),
    ),
    Mutant(
        "compiled-memory-learns-nothing",
        "Speed, CPU",
        LOSSES,
        "        if pairs:  # observations",
        "        if not pairs:  # observations",
        CHANGES,
    ),
    Mutant(
        "compiled-state-within-a-state-is-no-tensor",
        "Speed, CPU",
        LOSSES,
        "return [tensor for part in nest for tensor in _flat(part)]",
        "return list(nest)",
        compiled("test_a_task_that_holds_the_state_of_another_is_recorded_as_well"),
    ),
    Mutant(
        "compiled-tries-again-without-a-compiler",
        "Speed, CPU",
        LOSSES,
        "            self._fails = True\n",
        "",
        compiled("test_without_a_compiler_it_says_so_and_gives_the_eager_numbers"),
    ),
)
