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
        "known = None if self._defers(warming=warming) else self._known(rollout, assessment)",
        "known = self._known(rollout, assessment)",
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
        "            self._stop[-1].copy_(~told.sound)\n",
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
        "        learned, known = self._learn(data, now, rollout, assessment, known)\n"
        "        self.advantage_moments = normal.after\n",
        "        self.advantage_moments = normal.after\n"
        "        learned, known = self._learn(data, now, rollout, assessment, known)\n",
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
        "if each.dtype == kind], math.inf)",
        "if each.dtype == kind], 2)",
        unit("update/no_waits", "test_a_large_number_is_finite", part="algorithms"),
    ),
)
