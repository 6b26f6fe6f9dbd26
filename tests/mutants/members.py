"""The bugs of members that share a device: turns of the host, and streams of recorded graphs."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

SHARED = "core/turns.py"
INPUTS = "core/machine_code/graph_inputs.py"
STREAMS = "core/machine_code/recording_streams.py"
GRAPHS = "algorithms/update/graphs.py"
TRAINER = "algorithms/trainer.py"


def turn(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of turns."""
    return unit("turns", *names, part="core")


def given(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of what recorded functions are given."""
    return unit("update/graph_inputs", *names, part="algorithms")


MEMBERS = (
    Mutant(
        "two-members-have-the-turn",
        "Speed, GPU",
        SHARED,
        "            if not self._is_taken:\n",
        "            if True:\n",
        turn("test_one_thread_at_a_time_runs_between_two_waits"),
    ),
    Mutant(
        "turn-for-whoever-asked-last",
        "Speed, GPU",
        SHARED,
        "self._queue.popleft().release()",
        "self._queue.pop().release()",
        turn("test_turns_come_in_the_order_in_which_they_are_asked_for"),
    ),
    Mutant(
        "turn-lost-with-a-signal",
        "Speed, GPU",
        SHARED,
        "            if has_turn:\n                self._leave()\n",
        "",
        turn("test_a_turn_that_came_together_with_a_signal_is_passed_on"),
    ),
    Mutant(
        "turn-left-twice-after-a-signal",
        "Speed, GPU",
        SHARED,
        "        if _OWN.has_turn:  # not where a signal kept it from getting its turn back\n",
        "        if True:\n",
        turn("test_a_signal_while_waiting_for_a_turn_loses_no_turn"),
    ),
    Mutant(
        "members-on-a-cpu-take-turns",
        "Speed, GPU",
        SHARED,
        ' or device.type == "cpu"',
        "",
        turn("test_a_single_run_and_a_cpu_take_no_turn"),
    ),
    Mutant(
        "turn-kept-while-the-device-works",
        "Speed, GPU",
        GRAPHS,
        "        with turns.given_up():\n            done.synchronize()\n",
        "        done.synchronize()\n",
        unit(
            "update/graphs",
            "test_a_member_gives_up_its_turn_until_the_device_is_done",
            part="algorithms",
        ),
    ),
    Mutant(
        "turn-kept-while-the-disk-works",
        "Speed, GPU",
        TRAINER,
        "    @turns.given_up()\n    def save(",
        "    def save(",
        integration("population", "test_members_that_take_turns_have_the_same_bits"),
    ),
    Mutant(
        "graphs-of-two-members-have-one-workspace",
        "Speed, GPU",
        STREAMS,
        "    own = [each for each in _LIVING if each.place == place]\n    is_alone",
        "    own = list(_LIVING)\n    is_alone",
        unit(
            "update/graph_streams",
            "test_learners_side_by_side_never_record_on_a_stream_of_another_one",
            part="algorithms",
        ),
    ),
    Mutant(
        "recorded-stream-is-taken-again",
        "Speed, GPU",
        STREAMS,
        "if stream.cuda_stream not in taken",
        "if stream.cuda_stream",
        unit(
            "update/graph_streams",
            "test_no_two_living_graphs_are_recorded_on_one_stream",
            part="algorithms",
        ),
    ),
    Mutant(
        "recorded-function-misses-what-is-made-anew",
        "Speed, GPU",
        INPUTS,
        "        move_into(places, values)\n        return True\n",
        "        return True\n",
        given("test_what_is_made_anew_is_copied_to_its_place"),
    ),
    Mutant(
        "recorded-function-takes-another-table-for-its-own",
        "Speed, GPU",
        INPUTS,
        "        if not all(map(is_, parts, self._seen)):\n            return False\n",
        "",
        given("test_what_differs_in_anything_else_is_looked_at"),
    ),
)
