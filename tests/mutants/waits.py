"""Bugs of an update in which the host waits for the device once, when its epochs are over."""

from mutants.harness import Mutant
from mutants.nodes import unit

EPOCHS = "algorithms/update/device_epochs.py"
ORDER = "algorithms/ppo.py"
LOOK = unit(
    "update/no_waits", "test_one_look_at_the_end_gives_the_update_of_many_looks", part="algorithms"
)
VETO = unit(
    "update/no_waits",
    "test_what_is_not_finite_changes_nothing_and_is_told_as_ever",
    part="algorithms",
)
WAITS = (
    Mutant(
        "wait-in-the-middle",
        "waits",
        ORDER,
        "        defers = self._defers(warming=warming)\n",
        "        defers = False\n",
        LOOK,
    ),
    Mutant(
        "wait-for-the-scale",
        "waits",
        "algorithms/update/popart.py",
        '    if mode == "frozen_lag":\n',
        '    if mode == "frozen_lag" or not bool(moves):\n',
        LOOK,
    ),
    Mutant(
        "veto-not-for-the-weights",
        "waits",
        EPOCHS,
        "            self._stop[-1].copy_(~pending.sound)\n",
        "            pass\n",
        VETO,
    ),
    Mutant(
        "veto-not-for-the-streams",
        "waits",
        EPOCHS,
        "            _put_back(generators, begin)\n",
        "",
        VETO,
    ),
    Mutant(
        "veto-not-for-the-returns",
        "waits",
        "algorithms/update/return_statistics.py",
        "adds = torch.ones_like(warming) if sound is None else sound",
        "adds = torch.ones_like(warming)",
        VETO,
    ),
    Mutant(
        "veto-not-for-the-scale",
        "waits",
        "algorithms/update/popart.py",
        "        moves = moves & sound\n",
        "        pass\n",
        VETO,
    ),
    Mutant(
        "veto-not-for-the-observations",
        "waits",
        "modules/scale.py",
        "old.copy_(new if sound is None else torch.where(sound, new, old))",
        "old.copy_(new)",
        VETO,
    ),
    Mutant(
        "veto-not-for-first-moments",
        "waits",
        ORDER,
        "        advantage, moments = normal.advantage, normal.used\n",
        "        advantage, moments = normal.advantage, normal.used\n"
        "        self.advantage_moments = normal.after\n",
        unit(
            "update/no_waits",
            "test_a_first_update_that_is_not_finite_leaves_no_moments",
            part="algorithms",
        ),
    ),
    Mutant(
        "norm-of-large-numbers-overflows",
        "waits",
        "algorithms/update/nonfinite.py",
        "torch._foreach_norm(arrays, 2, dtype=torch.float64)",
        "torch._foreach_norm(arrays, 2)",
        unit("update/no_waits", "test_a_large_number_is_finite", part="algorithms"),
    ),
    Mutant(
        "limit-waits-for-its-outcomes",
        "waits",
        "algorithms/risk/control.py",
        "            self.critic is None\n            and config.cvar_quantity",
        "            self.critic is not None\n            and config.cvar_quantity",
        unit(
            "update/no_waits",
            "test_a_limit_waits_for_nothing_and_decides_what_it_would",
            part="algorithms",
        ),
    ),
    Mutant(
        "plan-window-one-off",
        "waits",
        "algorithms/risk/planned.py",
        "rank = new - size + 1 + place",
        "rank = new - size + place",
        unit("risk/planned", "test_the_window_is_that_of_the_host", part="algorithms"),
    ),
    Mutant(
        "plan-level-of-absent-outcomes",
        "waits",
        "algorithms/risk/planned.py",
        "risk.weighted_value_at_risk(outcomes, weight, alpha=alpha)",
        "risk.value_at_risk(outcomes, alpha=alpha)",
        unit("risk/planned", "test_its_tail_is_that_of_the_host", part="algorithms"),
    ),
    Mutant(
        "plan-multiplier-before-enough-outcomes",
        "waits",
        "algorithms/risk/planned.py",
        "is_ready & gap.isfinite()",
        "gap.isfinite()",
        unit(
            "risk/planned", "test_the_rules_on_the_device_are_those_of_the_host", part="algorithms"
        ),
    ),
    Mutant(
        "plan-weight-behind-no-gate",
        "waits",
        "algorithms/risk/planned.py",
        "    share = torch.where(is_open, share, 0.0)\n",
        "",
        unit(
            "risk/planned", "test_the_rules_on_the_device_are_those_of_the_host", part="algorithms"
        ),
    ),
    Mutant(
        "plan-first-starts-alone",
        "waits",
        "algorithms/risk/advantage.py",
        "place * count // most, place",
        "place, place",
        unit("risk/planned", "test_the_predicted_tail_is_that_of_the_host", part="algorithms"),
    ),
    Mutant(
        "draws-that-are-gone-have-scores",
        "waits",
        "algorithms/risk/draws.py",
        "        self._scored = max(self._scored - forgotten, 0)\n",
        "",
        unit(
            "risk/draws", "test_scores_of_draws_that_are_forgotten_are_forgotten", part="algorithms"
        ),
    ),
    Mutant(
        "draws-replayed-in-any-order",
        "waits",
        "algorithms/risk/draws.py",
        "torch.where(taken, kept.measured, never).argsort(stable=True)",
        "torch.where(taken, never, kept.measured).argsort(stable=True)",
        unit(
            "risk/draws",
            "test_the_draws_to_be_replayed_are_found_without_a_look_at_the_device",
            part="algorithms",
        ),
    ),
    Mutant(
        "epochs-go-on-where-a-recording-ended",
        "waits",
        EPOCHS,
        "            self._next.copy_(following)\n",
        "",
        unit("update/no_waits", "test_epochs_through_a_graph_are_plain_ones", part="algorithms"),
    ),
    Mutant(
        "graph-of-a-minibatch-lets-go-of-what-it-reads",
        "waits",
        EPOCHS,
        "self._captured else step, (place, ahead))",
        "self._captured else step, ())",
        unit(
            "update/no_waits",
            "test_what_a_graph_reads_outlives_its_recording",
            part="algorithms",
        ),
    ),
    Mutant(
        "graph-recorded-while-garbage-is-collected",
        "waits",
        "algorithms/update/graphs.py",
        "    gc.disable()\n",
        "",
        unit(
            "update/graphs",
            "test_nothing_is_collected_while_a_graph_is_recorded",
            part="algorithms",
        ),
    ),
    Mutant(
        "beginning-holds-the-path-of-a-gradient",
        "waits",
        "algorithms/update/rollout.py",
        "@torch.no_grad()  # else a learned",
        "# else a learned",
        unit(
            "update/rollout",
            "test_a_beginning_holds_no_path_of_a_gradient",
            part="algorithms",
        ),
    ),
)
