"""A run is a function of configuration, data, seed, version and device, not of the environment."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

from stormsail.algorithms import TrainConfig, train
from stormsail.algorithms.config.derive import derive
from stormsail.bench.processes import one_thread
from training_lab import UPDATES, image, run_all, run_for, small

PLACES = {
    "one": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LC_ALL": "C", "PYTHONHASHSEED": "0",
            "TZ": "Asia/Kathmandu"},
    "two": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "LC_ALL": "de_DE.UTF-8",
            "PYTHONHASHSEED": "1", "TZ": "America/St_Johns"},
    "four": {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "LC_ALL": "tr_TR.UTF-8",
             "PYTHONHASHSEED": "random", "TZ": "UTC", "AFFINITY": "1"},
}  # fmt: skip
"""Threads, locale, hash seed, time zone; with AFFINITY one core is all that the process sees."""

ELSEWHERE = textwrap.dedent(
    """
    import locale
    import os
    import sys
    if "AFFINITY" in os.environ:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        pass
    from pathlib import Path
    from stormsail.algorithms import TrainConfig, train
    for name in sys.argv[1].split(","):
        train(TrainConfig.load(Path(sys.argv[2]) / f"{name}.toml"),
              out=Path(sys.argv[2]) / sys.argv[3] / name, tensorboard=False)
    """
)
# So many samples that torch divides its sums among threads: with one and with two, the weights of
# this run differ after its first update.
WIDE = {"ppo__n_envs": 16, "ppo__n_steps": 128, "ppo__batch_size": 16, "ppo__n_epochs": 1,
        "network__lstm_hidden_size": 64, "ppo__total_steps": 2 * 16 * 128,
        "validation__every_updates": 2}  # fmt: skip


def elsewhere(names, folder, place, environment):
    """Train in another process, in a working directory of its own."""
    cwd = folder / f"cwd-{place}"
    cwd.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMP")}
    return subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, ",".join(names), str(folder), place],
        stderr=subprocess.PIPE,
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def configurations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    settings = {
        "wide": small(**WIDE).replace(threads=None),
        "market": small("market", vgs__enabled=True).replace(threads=None),
    }
    for name, config in settings.items():
        (folder / f"{name}.toml").write_text(config.to_toml())
    shutil.copy(folder / "wide.toml", folder / "cut.toml")
    return folder, settings


@pytest.fixture(scope="module")
def here(configurations):
    """Return the runs of this process."""
    folder, settings = configurations
    return {name: run_all(config, folder / "here" / name) for name, config in settings.items()}


def test_no_environment_changes_a_bit_nor_does_a_resume_in_another(configurations, here):
    folder, settings = configurations
    run_for(settings["wide"], folder / "begun", 1)
    for place in PLACES:  # begun here, to be continued there
        shutil.copytree(folder / "begun", folder / place / "cut", symlinks=True)
    started = [elsewhere((*settings, "cut"), folder, place, PLACES[place]) for place in PLACES]
    assert {run.config.threads for run in here.values()} == {1}
    for process in started:
        _, complaint = process.communicate(timeout=900)
        assert process.returncode == 0, complaint.decode()
    for name, whole in (("wide", "wide"), ("market", "market"), ("cut", "wide")):
        wanted = image(folder / "here" / whole)
        for place in PLACES:
            assert image(folder / place / name) == wanted, (place, name)


def test_two_threads_give_other_bits(here, tmp_path):
    """Otherwise the test above would pass for a number of threads that changes nothing."""
    one = here["wide"].agent.state_dict()
    two = run_all(small(**WIDE, threads=2), tmp_path / "two").agent.state_dict()
    assert any(not torch.equal(one[name], two[name]) for name in one)


def test_a_training_has_its_threads_while_it_runs(tmp_path):
    before = torch.get_num_threads()
    for count in (1, 2):
        seen = []
        train(
            small(threads=count, validation__every_updates=0),
            out=tmp_path / str(count),
            tensorboard=False,
            on_progress=lambda _progress, seen=seen: seen.append(torch.get_num_threads()),
        )
        assert seen == [count] * UPDATES
        assert torch.get_num_threads() == before
        with one_thread():  # a bench that fixes one itself agrees with what is derived
            assert torch.get_num_threads() == derive(TrainConfig()).threads
