"""`stormsail bench train`: the same work on both sides, ratios from one run, what is printed."""

import json
import sys
from dataclasses import asdict

import pytest
import torch

from stormsail.algorithms.update import graphs
from stormsail.bench.learner import train as bench
from stormsail.bench.learner.bounds import Work
from stormsail.bench.learner.twins import GUARDS
from stormsail.bench.options import whole_numbers
from stormsail.cli.bench.learner import train as command
from stormsail.core.errors import ChoiceError, RangeError

TINY = bench.Sizes(environments=2, steps=4, epochs=2, minibatches=2)
CALLED = ["compile_update=false"]
OPTIONS = {
    "task": "cartpole",
    "environments": "2",
    "steps": 4,
    "epochs": 2,
    "minibatches": 2,
    "updates": 1,
    "settings": CALLED,
    "jax_half": None,
    "peers": True,
}
PEERS = ["sb3-contrib, its defaults, two LSTMs", "sb3-contrib, one LSTM"]
OURS = [
    "ours, its defaults",
    "ours, one scalar critic, AdamW",
    "ours, its defaults, Gymnasium",
    "ours, one scalar critic, AdamW, Gymnasium",
]


def row(way, rates, width=64, *, peer=False, **others):
    parts = {} if peer else dict.fromkeys(bench.PARTS, 1.0)
    return bench.Row(width, way, rates, parts, **others)


def peer(sizes=TINY, *, shared=True):
    options = {"width": 8, "head": bench.HEAD, "rate": bench.LEARNING_RATE, "seed": 0}
    return bench.Sb3(bench.TASK, 4, shared=shared, **asdict(sizes), **options)


def our_learner(sizes=TINY, *, plain=False):
    chosen = {"task": bench.TASK, "device": "cpu", "seed": 0, "plain": plain, "settings": CALLED}
    return bench.Ours(bench.overrides(sizes, 8, **chosen))


def test_both_sides_learn_from_as_many_samples_as_often():
    pytest.importorskip("sb3_contrib")
    sizes = bench.Sizes(environments=4, steps=6, epochs=3, minibatches=2)
    config = our_learner(sizes).ppo.config
    model = peer(sizes).model
    samples = config.ppo.batch_size * config.ppo.n_steps
    assert (samples, config.ppo.n_epochs, config.ppo.n_envs) == (12, 3, 4)
    assert (model.batch_size, model.n_epochs, model.n_envs) == (12, 3, 4)
    assert model.n_steps == config.ppo.n_steps == 6
    assert model.learning_rate == config.ppo.learning_rate == bench.LEARNING_RATE
    assert config.kl.target_kl is None


def test_the_plain_way_has_the_network_and_optimizer_of_the_peer():
    pytest.importorskip("sb3_contrib")
    model = peer().model
    ours = our_learner(plain=True).ppo
    # LSTM 4 x 8 (4 + 8 + 2), two hidden layers 64 (8 + 1), two actions and one value 3 x 65
    size = 4 * 8 * (4 + 8 + 2) + 2 * 64 * 9 + 3 * 65
    assert sum(p.numel() for p in ours.agent.parameters()) == size
    assert sum(p.numel() for p in model.policy.parameters()) == size
    assert type(ours.optimizer).__name__ == "AdamW"


def test_the_defaults_are_those_of_the_package():
    config = our_learner().ppo.config
    assert (config.critic.kind, config.critic.critics) == ("quantile", 2)
    assert config.optimizer.optimizer_class == "AdaptiveUPGD"
    assert config.observation.normalise is True


def test_the_peer_counts_on_and_does_every_epoch():
    pytest.importorskip("sb3_contrib")
    learner = peer(shared=False)
    learner(1)
    learner(2)
    assert learner.model.num_timesteps == 3 * 8
    assert learner.model._n_updates == 3 * 2


def test_the_parts_of_an_update_are_measured_at_its_seams(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])

    def slow(function, seconds):
        def run(*arguments, **options):
            now[0] += seconds
            return function(*arguments, **options)

        return run

    import stormsail.algorithms.ppo as module

    for name, seconds in (("collect", 1.0), ("estimate", 2.0), ("learn", 4.0)):
        monkeypatch.setattr(module, name, slow(getattr(module, name), seconds))
    monkeypatch.setattr(bench, "metrics", slow(bench.metrics, 8.0))
    ours = our_learner()
    ours(2)
    parts = {"rollout": 1e3, "estimates": 2e3, "epochs": 4e3, "metrics": 8e3}
    assert ours.milliseconds() == parts
    assert ours.ppo.update_count == 2


def test_no_clock_is_read_within_a_recorded_function(monkeypatch):
    """On a GPU it would wait there, so that nothing could be recorded, and be read once for all."""

    class Once:
        def __init__(self, function, _):
            self.result = function()

        def __call__(self):
            return self.result

    monkeypatch.setattr(graphs, "Graph", Once)
    ours = our_learner()
    ours.ppo.recorder = graphs.Recorder(captured=True)
    for _ in range(3):
        ours.ppo.update()
        assert len(ours.ppo.stamps) == len(bench.PARTS)


def test_upkeep_is_measured_in_one_update(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench.time, "process_time", lambda: now[0])
    ours = our_learner()

    def slow(owner, name, seconds):
        plain = getattr(owner, name)

        def run(*arguments, **options):
            now[0] += seconds
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, run)

    slow(bench, "metrics", 2.0)
    slow(bench.Alarms, "check", 0.5)
    slow(ours.ppo.pipeline, "step", 1.0)
    # two epochs of two minibatches, in the update and again by themselves
    wanted = {"optimizer": 4e3, "metrics": 2e3, "alarms": 500.0, "update": 6.5e3}
    assert ours.upkeep() == wanted


def test_every_way_takes_a_turn_in_every_round(monkeypatch):
    now, turns = [0.0], []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(bench.time, "process_time", lambda: 2.0 * now[0])

    def learner(name, seconds):
        def run(updates):
            turns.append((name, updates))
            now[0] += updates * seconds

        return lambda: run

    found = {"fast": learner("fast", 0.5), "slow": learner("slow", 2.0)}
    monkeypatch.setattr(bench, "ways", lambda *_, **__: found)
    fast, slow = bench.compare(8, sizes=TINY, updates=3, rounds=2).rows
    counted = [("fast", 1)] * 2 + [("slow", 1)] * 2  # memory and calls, not timed
    assert turns == [("fast", 1), ("slow", 1), *[("fast", 3), ("slow", 3)] * 2, *counted]
    assert (fast.rates, slow.rates) == ((16.0, 16.0), (4.0, 4.0))
    assert (fast.processor_rates, slow.processor_rates) == ((8.0, 8.0), (2.0, 2.0))


def test_a_ratio_is_to_the_fastest_peer_of_the_same_width():
    rows = [
        row("slow peer", (1.0, 9.0, 2.0), peer=True),
        row("fast peer", (4.0,), peer=True),
        row("ours", (6.0, 5.0, 100.0)),
        row("ours", (6.0,), width=256),
    ]
    assert [one.rate for one in rows] == [2.0, 4.0, 6.0, 6.0]
    assert bench.ratios(rows) == [0.5, 1.0, 1.5, None]
    assert bench.ratios([*rows, row("ours", (6.0,), task="market")])[-1] is None
    assert bench.ratios([*rows, row("ours", (6.0,), environments=64)])[-1] is None


def test_a_ratio_by_processor_time_has_its_own_fastest_peer():
    rows = [
        row("one", (1.0,), peer=True, processor_rates=(8.0,)),
        row("other", (2.0,), peer=True, processor_rates=(4.0,)),
        row("ours", (4.0,), processor_rates=(4.0, 20.0, 16.0)),
    ]
    assert bench.ratios(rows) == [0.5, 1.0, 2.0]
    assert bench.ratios(rows, processor=True) == [1.0, 0.5, 2.0]


def test_upkeep_is_a_share_of_the_update_that_it_is_a_part_of():
    upkeep = {"optimizer": 10.0, "metrics": 7.0, "alarms": 3.0, "update": 80.0}
    assert row("ours", (1.0,), upkeep=upkeep).upkeep_share == 0.25
    assert row("a peer", (1.0,), peer=True).upkeep_share is None


def test_what_is_achieved_is_the_work_over_the_time_of_its_phase():
    done = {"rollout": Work(6.0, 2.0), "epochs": Work(40.0, 10.0)}
    parts = {"rollout": 500.0, "estimates": 1.0, "epochs": 4000.0, "metrics": 1.0}
    one = bench.Row(64, "ours", (1.0,), parts, work=done)
    assert one.achieved("rollout") == Work(12.0, 4.0)
    assert one.achieved("epochs") == Work(10.0, 2.5)
    assert one.document()["work"]["epochs"]["a_second"] == {"operations": 10.0, "bytes": 2.5}


def test_the_table_and_the_file_hold_every_way(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sb3_contrib")
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "figures.json"
    command(lstm="4", rounds=1, device="cpu", threads=0, seed=0, out=out, **OPTIONS)
    printed = capsys.readouterr().out
    whole = json.loads(out.read_text())
    found = whole["rows"]
    assert [one["way"] for one in found] == [*PEERS, *OURS]
    assert set(whole["skipped"]) == {"CartPole-v1: JAX, one program"}
    assert [one["name"] for one in whole["guards"]] == [guard.name for guard in GUARDS]
    assert set(whole["ceilings"]) == {"operations", "bytes"}
    assert max(one["ratio"] for one in found[:2]) == 1.0
    for one in found:
        line = next(text for text in printed.splitlines() if f"│ {one['way']} " in text)
        assert f"│ {one['rate']:,.0f} " in line
        assert f"│ {one['ratio']:.2f} " in line
        is_peer = one["way"] in PEERS
        assert set(one["milliseconds"]) == (set() if is_peer else set(bench.PARTS))
        assert set(one["upkeep"]) == (set() if is_peer else {*bench.UPKEEP, "update"})
        assert set(one["work"]) == (set() if is_peer else {"rollout", "epochs"})
        assert one["calls"]["launches"] > 100


def test_without_the_peer_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    monkeypatch.setenv("COLUMNS", "200")
    command(lstm="4", rounds=1, device="cpu", threads=0, seed=0, out=None, **OPTIONS)
    printed = capsys.readouterr().out
    assert bench.NOT_INSTALLED in printed
    assert [way for way in (*PEERS, *OURS) if f"│ {way} " in printed] == OURS


@pytest.mark.refusal
def test_minibatches_of_different_sizes_are_refused():
    with pytest.raises(RangeError) as caught:
        bench.compare(8, sizes=bench.Sizes(environments=6, minibatches=4))
    assert str(caught.value) == (
        "`--minibatches` must divide `--environments`, so that both sides learn from equal ones; "
        "found 4 minibatches of 6 environments. Choose for example 4 of 16. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("text", ["", "64,", "0", "wide", "-1", "6.4"])
def test_widths_that_are_none_are_refused(text):
    with pytest.raises(RangeError) as caught:
        whole_numbers(text, option="lstm", example="64,256")
    assert str(caught.value) == (
        "`--lstm` must be whole numbers of at least 1 with commas between them; "
        f"found {text!r}. Write it as 64,256. [out-of-range]"
    )


def test_widths_are_read_in_their_order():
    assert whole_numbers("64, 256,8", option="lstm", example="64,256") == (64, 256, 8)


@pytest.mark.refusal
def test_another_task_is_refused():
    with pytest.raises(ChoiceError) as caught:
        bench.chosen_tasks("cartpole,atari")
    assert str(caught.value) == (
        "`--task` must be cartpole or market, or both with a comma between them; found "
        "'cartpole,atari'. Write it as cartpole,market. [unknown-choice]"
    )
    assert bench.chosen_tasks("market, cartpole") == [bench.MARKET, bench.TASK]


def test_sizes_are_those_of_task_and_device():
    assert bench.usual_sizes(bench.TASK, "cpu") == bench.Sizes(16, 128, 4, 4)
    assert bench.usual_sizes(bench.MARKET, "cpu") == bench.Sizes(64, 64, 4, 4)
    assert bench.usual_sizes(bench.MARKET, "cuda:1") == bench.Sizes(16_384, 64, 4, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ours_learns_on_cuda():
    ours = bench.Ours(bench.overrides(TINY, 8, task=bench.TASK, plain=False, device="cuda", seed=0))
    ours(2)
    assert ours.ppo.update_count == 2
