"""The bugs of `stormsail bench learn`: rows that are kept, and tasks whose answers are known."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

LEARN = "bench/learner/learn.py"
ROWS = "bench/campaign.py"
RECALL = "tasks/recall.py"


def _rows(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    tests = unit("learner/learn_rows", test, part="bench")
    return Mutant(f"rows-{name}", "bench", file, old, new, tests)


def _recall(name: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(f"recall-{name}", "bench", RECALL, old, new, unit("recall", test, part="tasks"))


REFERENCE = (
    # --- parts that are on and do nothing
    Mutant(
        "kl-penalty-is-not-applied",
        "bench",
        "algorithms/update/kl_control.py",
        "return self.beta if on else 0.0",
        "return 1e-6 * self.beta if on else 0.0",
        integration("every_part_acts", "test_every_part_acts_by_what_is_stated[full]"),
    ),
    # --- a cue to be remembered
    _recall(
        "cue-stays-visible",
        "* (time == 0.0)[:, None]",
        "* (time <= DELAY)[:, None]",
        "test_the_cue_is_seen_once_and_the_query_ten_steps_later",
    ),
    _recall(
        "asked-a-step-early",
        "query = time == DELAY\n",
        "query = time == DELAY - 1\n",
        "test_every_step_equals_that_of_the_gymnasium_environment[dtype0]",
    ),
    _recall(
        "wrong-answers-are-free",
        "torch.where(right, 1.0, -1.0)",
        "torch.where(right, 1.0, 0.0)",
        "test_an_answer_is_worth_one_at_the_query_alone_and_ends_the_episode",
    ),
    # --- rows of finished runs
    _rows(
        "key-without-the-seed",
        LEARN,
        '"steps": self.line.steps, "seed": self.seed, "episodes"',
        '"steps": self.line.steps, "episodes"',
        "test_the_key_of_a_peer_is_of_its_own_settings_and_seed_alone",
    ),
    _rows(
        "key-without-the-settings",
        LEARN,
        '{"learner": self.line.learner, "settings": own}',
        '{"learner": self.line.learner}',
        "test_the_key_holds_all_that_a_run_depends_on",
    ),
    _rows(
        "trained-again",
        LEARN,
        "left = [place for place in range(len(jobs)) if place not in by_place]",
        "left = [place for place in range(len(jobs))]",
        "test_a_finished_run_is_not_trained_again_and_is_judged_the_same",
    ),
    _rows(
        "not-forced-to-the-disk",
        ROWS,
        "        os.fsync(self._descriptor)\n",
        "",
        "test_each_row_is_on_the_disk_before_the_next_run_is_done",
    ),
    _rows(
        "half-a-line-is-kept",
        ROWS,
        "            os.ftruncate(descriptor, len(whole))\n",
        "            pass\n",
        "test_a_line_that_a_kill_cut_off_is_trained_again",
    ),
    _rows(
        "two-writers",
        ROWS,
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_UN",
        "test_a_file_that_another_process_writes_is_refused",
    ),
    _rows(
        "mean-instead-of-every-seed",
        LEARN,
        '"full-cartpole": Bar("min", 475.0)',
        '"full-cartpole": Bar("mean", 475.0)',
        "test_every_seed_of_the_full_file_is_held_to_its_bar",
    ),
)
