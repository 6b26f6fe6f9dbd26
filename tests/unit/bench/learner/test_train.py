"""`stormsail bench train`: the same work on both sides, ratios from one run, what is printed."""

import json
import sys

import pytest
import torch

from stormsail.bench.learner import train as bench
from stormsail.bench.options import whole_numbers
from stormsail.cli.bench.learner import train as command
from stormsail.core.errors import RangeError

TINY = bench.Sizes(environments=2, steps=4, epochs=2, minibatches=2)
OPTIONS = {"environments": 2, "steps": 4, "epochs": 2, "minibatches": 2, "updates": 1}
PEERS = ["sb3-contrib, its defaults, two LSTMs", "sb3-contrib, one LSTM"]
OURS = [
    "ours, its defaults",
    "ours, its defaults, Gymnasium",
    "ours, one scalar critic, AdamW",
    "ours, one scalar critic, AdamW, Gymnasium",
]


def row(way, rates, width=64, *, peer=False):
    return bench.Row(width, way, rates, {} if peer else dict.fromkeys(bench.PARTS, 1.0))


def our_learner(sizes=TINY, *, plain=False):
    chosen = {"task": bench.TASK, "device": "cpu", "seed": 0, "plain": plain}
    return bench.Ours(bench.overrides(sizes, 8, **chosen))


def test_both_sides_learn_from_as_many_samples_as_often():
    pytest.importorskip("sb3_contrib")
    sizes = bench.Sizes(environments=4, steps=6, epochs=3, minibatches=2)
    config = our_learner(sizes).ppo.config
    model = bench.Peer(sizes, 8, shared=True, device="cpu", seed=0).model
    samples = config.ppo.batch_size * config.ppo.n_steps
    assert (samples, config.ppo.n_epochs, config.ppo.n_envs) == (12, 3, 4)
    assert (model.batch_size, model.n_epochs, model.n_envs) == (12, 3, 4)
    assert model.n_steps == config.ppo.n_steps == 6
    assert model.learning_rate == config.ppo.learning_rate == bench.LEARNING_RATE
    assert config.kl.target_kl is None


def test_the_plain_way_has_the_network_and_optimizer_of_the_peer():
    pytest.importorskip("sb3_contrib")
    model = bench.Peer(TINY, 8, shared=True, device="cpu", seed=0).model
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
    peer = bench.Peer(TINY, 8, shared=False, device="cpu", seed=0)
    peer(1)
    peer(2)
    assert peer.model.num_timesteps == 3 * 8
    assert peer.model._n_updates == 3 * 2


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


def test_every_way_takes_a_turn_in_every_round(monkeypatch):
    now, turns = [0.0], []
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])

    def learner(name, seconds):
        def run(updates):
            turns.append((name, updates))
            now[0] += updates * seconds

        return lambda: run

    found = {"fast": learner("fast", 0.5), "slow": learner("slow", 2.0)}
    monkeypatch.setattr(bench, "ways", lambda *_, **__: found)
    fast, slow = bench.compare(8, sizes=TINY, updates=3, rounds=2)
    assert turns == [("fast", 1), ("slow", 1), *[("fast", 3), ("slow", 3)] * 2]
    assert (fast.rates, slow.rates) == ((16.0, 16.0), (4.0, 4.0))


def test_a_ratio_is_to_the_fastest_peer_of_the_same_width():
    rows = [
        row("slow peer", (1.0, 9.0, 2.0), peer=True),
        row("fast peer", (4.0,), peer=True),
        row("ours", (6.0, 5.0, 100.0)),
        row("ours", (6.0,), width=256),
    ]
    assert [one.rate for one in rows] == [2.0, 4.0, 6.0, 6.0]
    assert bench.ratios(rows) == [0.5, 1.0, 1.5, None]


def test_the_table_and_the_file_hold_every_way(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sb3_contrib")
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "figures.json"
    command(lstm="4", rounds=1, device="cpu", threads=0, seed=0, out=out, **OPTIONS)
    printed = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [one["way"] for one in found] == [*PEERS, *OURS]
    assert max(one["ratio"] for one in found[:2]) == 1.0
    for one in found:
        line = next(text for text in printed.splitlines() if f"│ {one['way']} " in text)
        assert f"│ {one['rate']:,.0f} " in line
        assert f"│ {one['ratio']:.2f} " in line
        assert set(one["milliseconds"]) == (set() if one["way"] in PEERS else set(bench.PARTS))


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ours_learns_on_cuda():
    ours = bench.Ours(bench.overrides(TINY, 8, task=bench.TASK, plain=False, device="cuda", seed=0))
    ours(2)
    assert ours.ppo.update_count == 2
