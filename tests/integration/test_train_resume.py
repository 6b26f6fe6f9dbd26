"""A run that was interrupted and went on is the run that was not, to the last bit."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pyarrow.parquet as pq
import pytest
import torch

from stormsail.algorithms import TrainConfig, Trainer
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run import folder as run_folder
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.tasks import binding, make_task
from stormsail.cli.main import main
from stormsail.core.errors import ArtifactError, ConfigError
from stormsail.core.generators import Generators
from stormsail.modules import Agent
from training_lab import TASKS, UPDATES, image, run_all, run_for, small

COMBINATIONS = list(
    itertools.product(TASKS, ("AdamW", "AdaptiveUPGD"), (False, True), ("quantile", "categorical"))
)


@pytest.mark.parametrize(("task", "optimizer", "scaled", "critic"), COMBINATIONS)
def test_an_interrupted_run_ends_with_the_same_bytes(task, optimizer, scaled, critic, tmp_path):
    config = small(
        task,
        optimizer__optimizer_class=optimizer,
        optimizer__sigma=0.01,
        vgs__enabled=scaled,
        vgs__warmup_steps=3,
        critic__kind=critic,
    )
    whole = run_all(config, tmp_path / "whole")
    assert whole.status == "finished"
    assert whole.updates == UPDATES
    # Once between two checkpoints, once where one is due anyway.
    for updates in (1, 4):
        cut = run_for(config, tmp_path / "cut", updates)
        assert (cut.status, cut.updates, cut.signal) == ("interrupted", updates, 15)
    ended = run_all(config, tmp_path / "cut")
    assert (ended.status, ended.updates) == ("finished", UPDATES)
    assert image(tmp_path / "cut") == image(tmp_path / "whole")
    for name, tensor in whole.agent.state_dict().items():
        assert torch.equal(tensor, ended.agent.state_dict()[name]), name
    assert pq.read_table(tmp_path / "cut" / "metrics.parquet").num_rows == UPDATES


WITHOUT_RISK = {
    name.replace(".", "__"): getattr(TrainConfig().risk, name.removeprefix("risk."))
    for name in TASKS["market"]
    if name.startswith("risk.")
}
"""A rollout that is forged is refused beside settings of `risk`."""


@pytest.mark.parametrize("mode", ["kl_reg", "mixed_batch", "rollout"])
@pytest.mark.parametrize("task", ["pendulum", "market"])
def test_an_interrupted_run_with_an_adversary_ends_with_the_same_bytes(task, mode, tmp_path):
    """Its draws and its radius go on where they stood, in the middle of the warm-up too."""
    config = small(
        task,
        adversary__mode=mode,
        adversary__warmup_updates=3,
        adversary__epsilon_schedule="cosine",
        adversary__attack_method="sgld",
        **(WITHOUT_RISK if mode == "rollout" else {}),
    )
    run_all(config, tmp_path / "whole")
    for updates in (1, 4):
        run_for(config, tmp_path / "cut", updates)
    run_all(config, tmp_path / "cut")
    assert image(tmp_path / "cut") == image(tmp_path / "whole")
    table = pq.read_table(tmp_path / "cut" / "metrics.parquet").to_pydict()
    radius = table["sa_ppo/current_epsilon"]
    assert (radius[0], radius[1] < radius[2]) == (0.0, True)
    assert min(table["sa_ppo/adversarial_samples"][1:]) > 0.0


def test_another_seed_gives_other_bytes(tmp_path):
    run_all(small(), tmp_path / "one")
    run_all(small(seed=6), tmp_path / "other")
    one, other = image(tmp_path / "one"), image(tmp_path / "other")
    assert one.keys() == other.keys()
    same = {name for name in one if one[name] == other[name]}
    assert not {name for name in same if name.endswith((".safetensors", ".parquet"))}


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run_all(small(), tmp_path / "run")
    before = image(tmp_path / "run")
    again = run_all(small(), tmp_path / "run")
    assert (again.status, again.updates) == ("finished", UPDATES)
    assert image(tmp_path / "run") == before


def test_the_best_agent_is_that_of_the_best_evaluation_and_every_evaluation_is_a_trial(tmp_path):
    done = run_all(small(validation__every_updates=1), tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    trials = [event for event in map(json.loads, lines) if event["kind"] == "trial"]
    assert [event["trial"] for event in trials] == list(range(1, UPDATES + 1))
    assert [event["update"] for event in trials] == list(range(1, UPDATES + 1))
    scores = [event["score"] for event in trials]
    # A later evaluation must be better, not as good: the first of equals stays.
    records = [max(scores[:place], default=-1.0) < one for place, one in enumerate(scores)]
    assert [event["best"] for event in trials] == records
    assert done.best_score == max(scores)
    best = Agent.load(done.best)
    generator = Generators(5).stream("validation")
    evaluation = evaluate(make_task(small(), batch=3, purpose="evaluation"), best, generator)
    assert evaluation.score == done.best_score
    table = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pydict()
    assert table["validation/score"] == scores
    assert table["validation/best_score"][-1] == max(scores)


@pytest.mark.refusal
def test_a_changed_setting_is_refused_by_name(tmp_path):
    out = tmp_path / "run"
    run_for(small(validation__every_updates=1), out, 1)
    before = image(out)
    with pytest.raises(ConfigError) as caught:
        run_all(small(validation__every_updates=1, ppo__clip_range=0.3, optimizer__sigma=0.5), out)
    assert str(caught.value) == (
        f"`optimizer.sigma`, `ppo.clip_range` must stay what the run in {out} was begun with; "
        "found `optimizer.sigma` 0.5 instead of 0.001, `ppo.clip_range` 0.3 instead of 0.2. "
        "Repeat the command that began it, or give the new run another folder. "
        "[config-inconsistent]"
    )
    assert image(out) == before


def every_setting(data, above=""):
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from every_setting(value, f"{above}{name}.")
        else:
            yield above + name


def test_no_setting_is_left_out_of_the_comparison():
    config = small("market")
    names = {name for name, _, _ in run_folder.differences(config, TrainConfig())}
    other = small("market", seed=9, ppo__gamma=0.5, task__market__stops__drawdown=0.5)
    result = run_folder.differences(config, other)
    assert result == [
        ("ppo.gamma", 0.99, 0.5),
        ("seed", 5, 9),
        ("task.market.stops.drawdown", 0.02, 0.5),
    ]
    assert names <= set(every_setting(config.model_dump(mode="json")))


def test_settings_of_the_disk_may_change(tmp_path):
    config = small(checkpoint__keep_last=5)
    run_all(config, tmp_path / "whole")
    run_for(config, tmp_path / "cut", 3)
    run_all(small(checkpoint__keep_last=1), tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "checkpoints").glob("[0-9]*"))) == 1
    whole, cut = image(tmp_path / "whole"), image(tmp_path / "cut")
    differ = {name.rpartition("/")[2] for name in whole if whole[name] != cut[name]}
    assert differ == {"config.toml", "manifest.json"}  # both of the checkpoint, which holds it
    assert whole["manifest.json"] == cut["manifest.json"]


@pytest.mark.refusal
def test_other_data_are_refused_by_name(tmp_path, monkeypatch):
    out, config = tmp_path / "run", small("market")
    run_for(config, out, 1)
    bound = {**binding(config), "data": "of another day"}
    with pytest.raises(ArtifactError) as caught, open_run(out, config, bound):
        pass
    assert str(caught.value) == (
        f'`bound_data` of the run in {out} must be "of another day"; '
        f'found "{binding(config)["data"]}". Go on with the data and the version that it was '
        "begun with, or start a new run in another folder. [artifact-mismatch]"
    )
    monkeypatch.setattr(checkpoint, "__version__", "0.0.9")
    with pytest.raises(ArtifactError) as caught:
        run_all(config, out)
    assert caught.value.wrong == f'`code_version` of the run in {out} must be "0.0.9"'


@pytest.mark.refusal
def test_a_second_process_is_refused(tmp_path):
    out, config = tmp_path / "run", small()
    with open_run(out, config, binding(config)), pytest.raises(ArtifactError) as caught:
        run_all(config, out)
    assert str(caught.value) == (
        f"one process at a time must train in {out}; found another one that does so now. "
        "Wait for it or stop it, or give this run a folder of its own. [run-busy]"
    )
    assert run_all(config, out).status == "finished"


@pytest.mark.refusal
def test_a_folder_of_something_else_is_refused_and_untouched(tmp_path):
    out = tmp_path / "photos"
    out.mkdir()
    (out / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(ArtifactError) as caught:
        run_all(small(), out)
    assert str(caught.value) == (
        f"{out} must be a new folder, or that of a run; found `cat.jpg` and no `manifest.json` in "
        "it. Choose another folder; nothing is ever overwritten. [artifact-exists]"
    )
    assert [path.name for path in out.iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("file", "artifact-exists"),
        ("link", "artifact-exists"),
        ("file/run", "artifact-write"),
    ],
)
def test_a_place_that_cannot_be_a_folder_is_refused(place, code, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArtifactError) as caught:
        run_all(small(), tmp_path / place)
    assert caught.value.code == code


def test_retention_keeps_the_last_and_every_kth(tmp_path):
    config = small(
        checkpoint__every_updates=1, checkpoint__keep_last=2, checkpoint__keep_every_updates=3
    )
    run_all(config, tmp_path / "run")
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    assert left == [f"{update * 32:012d}" for update in (0, 3, 5, 6)]


@pytest.mark.refusal
def test_the_disk_limit_is_loud_and_costs_nothing_that_was_saved(tmp_path):
    out, large = (
        tmp_path / "run",
        {"network__encoder_sizes": (128, 128), "checkpoint__keep_last": 9},
    )
    whole = run_all(small(**large), tmp_path / "whole")
    with pytest.raises(ArtifactError) as caught:
        run_all(small(**large, checkpoint__disk_limit_mb=1), out)
    result = caught.value.found
    assert caught.value.wrong == f"{out} must stay within `checkpoint.disk_limit_mb` 1"
    assert result.endswith("MiB with the next artifact")
    assert 1.0 <= float(result.split()[0]) < 2.0
    artifacts = [path for path in out.rglob("*") if path.is_file() and path.parent != out]
    assert sum(path.stat().st_size for path in artifacts) < 2**20
    resumed = run_all(small(**large), out)
    assert resumed.status == "finished"
    assert image(out).keys() == image(tmp_path / "whole").keys()
    for name, tensor in whole.agent.state_dict().items():
        assert torch.equal(tensor, resumed.agent.state_dict()[name]), name


def test_a_run_begins_again_where_a_kill_left_its_folder_half_made(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").write_text("")
    (out / ".tmp-77-0").mkdir()
    assert run_all(small(), out).status == "finished"
    assert not list(out.glob(".tmp-*"))


@pytest.mark.parametrize("left", ["next", "next and old", "old"])
def test_a_best_agent_on_its_way_is_put_in_its_place(left, tmp_path):
    out, config = tmp_path / "run", small()
    run_for(config, out, 4)
    expected = {path.name: path.read_bytes() for path in (out / "best").iterdir()}
    if left == "old":
        shutil.copytree(out / "best", out / "best-old")
    elif left == "next":
        shutil.copytree(out / "best", out / "best-next")
        (out / "best" / "agent.json").write_text("of an older one")
    else:
        shutil.copytree(out / "best", out / "best-next")
        (out / "best").rename(out / "best-old")
    with open_run(out, config, binding(config)):
        assert {path.name: path.read_bytes() for path in (out / "best").iterdir()} == expected
        assert not list(out.glob("best-*"))


def test_gymnasium_goes_on_with_new_episodes(tmp_path):
    config = small().replace(**{"task.name": "gym:CartPole-v1"})
    run_for(config, tmp_path / "run", 3)
    done = run_all(config, tmp_path / "run")
    assert (done.status, done.updates) == ("finished", UPDATES)
    table = pq.read_table(tmp_path / "run" / "metrics.parquet")
    assert table.num_rows == UPDATES


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: exit status, what it says, what it complains of."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["stormsail", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


@pytest.mark.parametrize(("kind", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_goes_on(kind, status, command, tmp_path, monkeypatch):
    file, out = tmp_path / "tiny.toml", tmp_path / "run"
    file.write_text(small().to_toml())
    arguments = ("train", file, "--out", out, "--set", "checkpoint.every_updates=1000")
    config = small(checkpoint__every_updates=1000)
    run_all(config, tmp_path / "whole")
    real = Trainer._update

    def signalled(trainer):
        if trainer.ppo.update_count == 2:
            os.kill(os.getpid(), kind)
        return real(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", signalled)
        ended, told, complaint = command(*arguments)
    assert ended == status
    assert told == f"{out}: interrupted after 96 steps\n"
    assert complaint.endswith("stormsail: interrupted and saved; the same command goes on.\n")
    steps = sorted(int(path.name) for path in (out / "checkpoints").glob("[0-9]*"))
    assert steps == [0, 96]  # the first state, and the one that the signal asked for
    ended, _, complaint = command(*arguments)
    assert ended == 0, complaint
    assert image(out) == image(tmp_path / "whole")
    log = [json.loads(line)["kind"] for line in (out / "process.jsonl").read_text().splitlines()]
    assert log == ["started", "interrupted", "resumed", "finished"]
    assert list((out / "tb").glob("events.out.tfevents.*"))


def test_a_second_interrupt_does_not_wait(tmp_path, monkeypatch):
    def impatient(_trainer):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", impatient)
        with pytest.raises(KeyboardInterrupt):
            run_all(small(), tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is before
    assert run_all(small(), tmp_path / "run").status == "finished"


def test_resume_needs_nothing_but_the_folder(command, tmp_path):
    config, out = small(), tmp_path / "cut"
    whole = run_all(config, tmp_path / "whole")
    run_for(config, out, 2)
    status, told, _ = command("resume", out)
    assert status == 0
    assert whole.best_interval is not None
    low, high = whole.best_interval
    assert told == (
        f"{out}: finished after {UPDATES * 32} steps, best score {whole.best_score:.6g} "
        f"({low:.4g} to {high:.4g}, 3 episodes, greedy policy)\n"
        f"best agent: {out}/best\n"
    )
    assert image(out) == image(tmp_path / "whole")
    status, told, complaint = command("resume", out, "--set", "ppo.gamma=0.9")
    assert (status, told) == (2, "")
    assert complaint.startswith("stormsail: `ppo.gamma` must stay what the run in ")
    status, _, complaint = command("resume", tmp_path / "nowhere")
    assert status == 2
    assert complaint == (
        f"stormsail: {tmp_path / 'nowhere'} must be the folder of a run; found no such folder. "
        "Start one with `stormsail train CONFIG --out RUN`. [artifact-missing]\n"
    )


def test_a_task_alone_is_enough_and_finds_its_run_again(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--task", "CartPole-v1"]
    for name in ("ppo.n_envs=4", "ppo.n_steps=8", "ppo.batch_size=2", "ppo.total_steps=32"):
        arguments += ["--set", name]
    status, told, complaint = command(*arguments)
    assert status == 0, complaint
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert told.startswith(f"runs/{folder.name}: finished after 32 steps")
    assert folder.name.startswith("cartpole-v1-")
    assert command(*arguments)[0] == 0
    assert sorted((tmp_path / "runs").iterdir()) == [
        folder, tmp_path / "runs" / "trials.jsonl", tmp_path / "runs" / "trials.jsonl.head"
    ]  # fmt: skip
    status, _, complaint = command(*arguments, "--set", "ppo.n_env=4")
    assert status == 2
    assert "Did you mean `ppo.n_envs`?" in complaint


ELSEWHERE = textwrap.dedent(
    """
    import sys
    import torch
    torch.set_num_threads(1)
    from pathlib import Path
    from stormsail.algorithms import TrainConfig, train
    train(TrainConfig.load(sys.argv[1]), out=sys.argv[2], tensorboard=False)
    """
)


def test_the_same_seed_gives_the_same_bytes_in_any_process(tmp_path):
    config = small("market", optimizer__optimizer_class="AdaptiveUPGD", vgs__enabled=True)
    file, folder = tmp_path / "tiny.toml", tmp_path / "folder"
    file.write_text(config.to_toml())
    folder.mkdir()
    places = {
        "one": ({"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}, tmp_path),
        "two": ({"PYTHONHASHSEED": "77", "TZ": "America/St_Johns", "LANG": "de_DE"}, folder),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, str(file), str(tmp_path / name)],
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            cwd=place,
        )
        for name, (environment, place) in places.items()
    ]
    run_all(config, tmp_path / "here")
    for process in started:
        _, complaint = process.communicate(timeout=300)
        assert process.returncode == 0, complaint
    assert image(tmp_path / "one") == image(tmp_path / "here")
    assert image(tmp_path / "two") == image(tmp_path / "here")
