"""The bugs of engines that carry out the rounds of a population in other processes."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

ROOM = "algorithms/population/engines"
PROCESSES, RAY = f"{ROOM}/processes.py", f"{ROOM}/ray.py"
REPORTS, TRANSPORT, GOODS = f"{ROOM}/reports.py", f"{ROOM}/transport.py", f"{ROOM}/goods.py"


def _own(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"engine-{name}", "engines", file, old, new, tests)


def processes(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of the engine of processes."""
    return unit("population/engines/processes", *tests, part="algorithms")


def transport(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests of folders as bytes."""
    return unit("population/engines/transport", *tests, part="algorithms")


def ray(*tests: str) -> tuple[str, ...]:
    """Return node ids of tests on a cluster."""
    return integration("ray_cluster", *tests)


RETRY = "if work.deaths < self._attempts:"
RETRY_RAY = "if deaths[index] < self._attempts:"

ENGINES = (
    # --- processes
    _own(
        "lost-job-not-retried",
        PROCESSES,
        RETRY,
        "if not work.deaths:",
        processes("test_a_killed_worker_is_replaced_and_its_job_done_again"),
    ),
    _own(
        "lost-job-retried-for-ever",
        PROCESSES,
        RETRY,
        "if work.deaths:",
        processes("test_a_job_that_kills_every_worker_is_given_up_after_three"),
    ),
    _own(
        "result-of-another-member",
        PROCESSES,
        "yield work.job, unpack_report(report)",
        "yield next(iter(busy.values()), work).job, unpack_report(report)",
        processes("test_outcomes_are_those_of_one_process"),
    ),
    _own(
        "worker-outlives-its-driver",
        PROCESSES,
        "            os.killpg(os.getpid(), signal.SIGKILL)\n",
        "            return\n",
        processes("test_workers_end_with_a_driver_that_is_killed"),
    ),
    _own(
        "children-of-a-dead-worker-stay",
        PROCESSES,
        "os.killpg(self._process.pid, signal.SIGKILL)",
        "pass",
        processes("test_a_death_is_seen_though_a_child_of_the_job_holds_the_pipe"),
    ),
    _own(
        "output-between-the-lines-of-the-driver",
        PROCESSES,
        "    os.dup2(descriptor, 1)\n",
        "",
        processes("test_what_a_job_prints_goes_to_the_file_of_its_worker"),
    ),
    _own(
        "worker-takes-all-threads",
        REPORTS,
        '    os.environ["OMP_NUM_THREADS"] = "1"\n',
        "",
        processes("test_a_worker_computes_with_one_thread"),
    ),
    _own(
        "exception-without-its-words",
        REPORTS,
        '        error = _unsendable("an exception", error)\n',
        "        error = RuntimeError(type(error).__name__)\n",
        processes("test_an_exception_that_cannot_travel_sends_its_words"),
    ),
    # --- folders as bytes
    _own(
        "folder-cut-off",
        TRANSPORT,
        "    content = stream.getvalue()\n",
        "    content = stream.getvalue()[: 1 << 17]\n",
        transport("test_a_folder_arrives_byte_for_byte"),
    ),
    _own(
        "cut-folder-accepted",
        TRANSPORT,
        "if hashlib.sha256(content).digest() != digest:",
        "if len(digest) != _DIGEST:",
        transport("test_bytes_that_are_not_those_that_were_sent_are_refused"),
    ),
    _own(
        "old-folder-thrown-away",
        TRANSPORT,
        "            before.rename(target)\n",
        "            pass\n",
        transport("test_a_driver_killed_at_any_rename_has_the_old_folder_or_the_new_one"),
    ),
    # --- Ray
    _own(
        "lost-actor-not-retried",
        RAY,
        RETRY_RAY,
        "if not deaths[index]:",
        ray("test_a_killed_actor_is_replaced_and_its_job_done_again"),
    ),
    _own(
        "lost-actor-retried-for-ever",
        RAY,
        RETRY_RAY,
        "if deaths[index]:",
        ray("test_a_job_that_kills_every_actor_is_given_up_after_three"),
    ),
    _own(
        "actor-answers-for-another",
        RAY,
        "                job = jobs[index]\n",
        "                job = jobs[-1 - index]\n",
        ray("test_more_members_than_room_take_turns_with_the_outcomes_of_one_process"),
    ),
    _own(
        "actor-without-a-share-sees-gpus",
        RAY,
        "        if not sees_gpus:\n",
        "        if False:\n",
        ray("test_a_member_without_a_share_sees_no_gpu"),
    ),
    _own(
        "actor-takes-a-whole-gpu",
        RAY,
        'num_gpus=self._needs["GPU"],',
        'num_gpus=-(-self._needs["GPU"] // 1),',
        ray("test_members_share_gpus_by_their_parts_on_all_nodes"),
    ),
    _own(
        "ledger-lines-stay-on-the-node",
        GOODS,
        "Goods(made, ledger.read().trials[before:])",
        "Goods(made, ())",
        ray("test_folders_travel_through_the_object_store_byte_for_byte"),
    ),
)
