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

HUBER = "functional/kernels/traced_huber.py"
ROWS = "functional/kernels/lstm_rows.cpp"
OF_ROWS = unit(
    "kernels/lstm_rows",
    "test_values_and_gradients_are_those_of_the_plain_layer",
    "test_a_small_input_of_a_squashed_gate_keeps_all_its_digits",
)

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
        "slope = (weight * inner).sum(-1) * unit / u.shape[-2]",
        "slope = (weight * inner).sum(-1) / u.shape[-2]",
        unit("kernels/traced_huber", "test_the_loss_is_that_of_the_oracle"),
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
        ROWS,
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
