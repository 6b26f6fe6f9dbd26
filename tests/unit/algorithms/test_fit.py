"""Training on a span: only its bars exist, whatever lies around it."""

import json
import os
import pickle
import signal
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
import torch

from stormsail.algorithms.config import DataConfig, TrainConfig
from stormsail.algorithms.fit import Interrupted, during, fitter, train_agent
from stormsail.algorithms.run.tasks import load_bars, load_data, market_data, market_panel
from stormsail.algorithms.trainer import Trainer
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.core.errors import (
    ArgumentError,
    ArtifactError,
    ConfigError,
    DataError,
    StormsailError,
)
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward.config import ValidationConfig
from stormsail.market.bars import from_columns
from stormsail.market.features import Scaler
from stormsail.market.interval import Interval
from stormsail.market.splits import HoledSpan, Span
from stormsail.market.store import Store
from stormsail.market.synthetic import generate
from stormsail.modules import Agent
from training_lab import small

HOUR = 3_600_000
START = 1_609_718_400_000
VALIDATION = ValidationConfig()


def utc(bars):
    return datetime.fromtimestamp((START + bars * HOUR) / 1000, UTC)


def config(**changes):
    return small("market", task__market__levels=(-1.0, 1.0), **changes)


def span(first, last):
    return Span(START + first * HOUR, START + last * HOUR)


def test_only_the_bars_of_the_span_exist_for_a_run():
    whole = market_data(config())
    cut = market_data(config(task__data__start=utc(100), task__data__end=utc(500)))
    assert cut.panel.ts.tolist() == [START + HOUR * row for row in range(100, 500)]
    assert torch.equal(cut.panel.close, whole.panel.close[100:500])
    assert (cut.train.start_ms, cut.validation.end_ms) == (START + 100 * HOUR, START + 500 * HOUR)
    assert cut.validation.start_ms == START + (100 + 320) * HOUR  # a fifth of 400 bars
    assert cut.train.end_ms == cut.validation.start_ms - cut.features.lookback * HOUR
    alone = Scaler.fit(
        cut.features.compute(whole.panel.between(cut.train.start_ms, cut.train.end_ms)),
        (0, 320 - cut.features.lookback),
        schema=cut.features.schema(),
    )
    assert torch.equal(cut.scaler.scale, alone.scale)
    assert not torch.equal(cut.scaler.scale, whole.scaler.scale)


def test_bars_outside_the_span_change_nothing_that_is_learned(tmp_path):
    """The whole computation, not only the cut: other bars before and after, the same agent."""
    agents = []
    for place, factor in (("a", 1.0), ("b", 7.0)):
        store = Store(tmp_path / place)
        world = generate("regime", symbols=2, bars=700, interval=Interval.parse("1h"), seed=0)
        for bars in world.bars:
            data = {name: bars.column(name).copy() for name in bars.columns}
            for name in ("open", "high", "low", "close"):
                data[name][:100] *= factor
                data[name][500:] *= factor
            store.write(from_columns(bars.symbol, bars.interval, data))
            store.write_funding(world.funding[bars.symbol])
        own = config(task__data__store=str(tmp_path / place))
        fit = fitter(own, workspace=tmp_path / f"runs-{place}", name="v")
        agents.append(fit(VALIDATION, span(100, 500), 3).state_dict())
    assert all(torch.equal(agents[0][name], agents[1][name]) for name in agents[0])


def test_bars_in_a_hole_change_nothing_that_is_learned(tmp_path):
    """Other bars in two holes, one of them among those that choose the agent: the same agent."""
    whole = span(0, 700)
    holed = HoledSpan(whole.start_ms, whole.end_ms, (span(150, 300), span(560, 600)))
    agents = []
    for place, factor in (("a", 1.0), ("b", 7.0)):
        store = Store(tmp_path / place)
        world = generate("regime", symbols=2, bars=700, interval=Interval.parse("1h"), seed=0)
        for bars in world.bars:
            data = {name: bars.column(name).copy() for name in bars.columns}
            for name in ("open", "high", "low", "close", "volume"):
                data[name][150:300] *= factor
                data[name][560:600] *= factor
            store.write(from_columns(bars.symbol, bars.interval, data))
            store.write_funding(world.funding[bars.symbol])
        own = config(task__data__store=str(tmp_path / place))
        fit = fitter(own, workspace=tmp_path / f"runs-{place}", name="v")
        agent = fit(VALIDATION, holed, 3)
        agents.append(agent.state_dict())
        assert agent.binding.values["without"] == [
            [hole.start_ms, hole.end_ms] for hole in holed.without
        ]
        assert (tmp_path / f"runs-{place}" / "v" / "split-0-seed-3").is_dir()
        data = market_data(during(own, holed))
        # 510 bars are left; four fifths of them, 408, end 150 bars later because of the first hole
        assert data.validation == span(558, 700)
        assert data.train == Span(whole.start_ms, START + (558 - data.features.lookback) * HOUR)
    assert all(torch.equal(agents[0][name], agents[1][name]) for name in agents[0])
    free = market_data(during(config(task__data__store=str(tmp_path / "b")), whole))
    assert not torch.equal(free.scaler.scale, data.scaler.scale)


def test_a_hole_must_start_before_it_ends():
    with pytest.raises(ConfigError, match="`without` must hold starts before ends"):
        config(task__data__without=((utc(3), utc(3)),))


@pytest.mark.spec("M34")
def test_an_interval_in_another_spelling_is_the_same_interval(tmp_path):
    """`60m` finds the bars of `1h`, which compared as text it would not, and finds no others."""
    store = Store(tmp_path)
    world = generate("regime", symbols=2, bars=300, interval=Interval.parse("1h"), seed=0)
    for bars in world.bars:
        store.write(bars)
    (other,) = generate("noise", symbols=1, bars=300, interval=Interval.parse("4h"), seed=1).bars
    store.write(from_columns("OTHER/USDT", other.interval, dict(columns(other))))
    panels = [
        load_bars(DataConfig(store=str(tmp_path), interval=text)) for text in ("1h", "60m", "240m")
    ]
    assert panels[0].symbols == panels[1].symbols == tuple(bars.symbol for bars in world.bars)
    assert panels[0].digest() == panels[1].digest()
    assert (panels[2].symbols, str(panels[2].interval)) == (("OTHER/USDT",), "4h")


@pytest.mark.spec("M38")
def test_bars_that_were_replaced_in_their_store_are_read_anew(tmp_path):
    """The path and the settings are the same; what is cached for them was other data."""
    own = config(task__data__store=str(tmp_path))
    digests = []
    for seed in (0, 1):
        world = generate("regime", symbols=1, bars=700, interval=Interval.parse("1h"), seed=seed)
        Store(tmp_path).write(world.bars[0])
        panels = (market_panel(own), market_data(own).panel)
        assert panels[0].close[:, 0].tolist() == world.bars[0].column("close").tolist()
        digests.append({panel.digest() for panel in panels})
    assert [len(one) for one in digests] == [1, 1]
    assert digests[0] != digests[1]
    assert market_data(own) is market_data(own)  # and cached it is


def columns(bars):
    return {name: bars.column(name) for name in bars.columns}.items()


def test_equal_times_in_other_zones_are_equal_settings():
    there = utc(100).astimezone(timezone(timedelta(hours=5)))
    assert DataConfig(start=there) == DataConfig(start=utc(100))
    assert DataConfig(start=there).config_hash() == DataConfig(start=utc(100)).config_hash()
    assert DataConfig(start=there).model_dump(mode="json")["start"] == "2021-01-08T04:00:00Z"
    again = TrainConfig.from_mapping({"task": {"data": {"start": "2021-01-08T04:00:00Z"}}})
    assert again.task.data.start == utc(100)
    assert again == TrainConfig().replace(**{"task.data.start": there})
    assert 'start = "2021-01-08T04:00:00Z"' in again.to_toml()


@pytest.mark.refusal
def test_a_time_without_a_zone_and_an_empty_span_are_refused():
    with pytest.raises(ConfigError, match="must name a time zone"):
        DataConfig(start=datetime(2021, 1, 1))
    with pytest.raises(ConfigError, match="`start` must be before `end`"):
        DataConfig(start=utc(5), end=utc(5))
    with pytest.raises(DataError) as caught:
        load_data(config(task__data__start=utc(699)).task.data, config().task.market)
    assert str(caught.value) == (
        "`task.data.start` and `task.data.end` must leave 2 bars or more; found 1 of 700 bars, "
        "which open from 2021-01-04T00:00:00Z to 2021-02-02T03:00:00Z. Choose times between the "
        "two, or bring more data. [data-span]"
    )


def test_a_fit_trains_in_a_folder_of_its_own_and_returns_its_best_agent(tmp_path):
    fit = fitter(config(), workspace=tmp_path, name="judged")
    first = fit(VALIDATION, span(0, 400), 1)
    fit(VALIDATION, span(0, 400), 2)
    fit(VALIDATION, span(0, 500), 1)
    folder = tmp_path / "judged"
    assert sorted(path.name for path in folder.iterdir()) == [
        "fold-0-seed-1", "fold-0-seed-2", "fold-1-seed-1",
    ]  # fmt: skip
    best = Agent.load(folder / "fold-0-seed-1" / "best")
    assert first.binding.values["train_span"][0] == START
    assert first.binding.values["validation_span"] == [START + 320 * HOUR, START + 400 * HOUR]
    for name, tensor in best.state_dict().items():
        assert torch.equal(tensor, first.state_dict()[name]), name
    told = TrainConfig.load(folder / "fold-1-seed-1" / "config.toml")
    assert told == during(config(), span(0, 500)).replace(seed=1)


def test_every_fit_is_a_trial_on_all_bars_of_the_validation(tmp_path):
    own = config(task__data__end=utc(600))
    fit = fitter(own, workspace=tmp_path, name="judged")
    for seed in (1, 2):
        fit(VALIDATION, span(0, 400), seed)
    ledger = TrialLedger(tmp_path / "trials.jsonl")
    digest = market_panel(own).digest()
    assert len(market_panel(own).ts) == 600
    assert (ledger.count(), ledger.count(data_hash=digest)) == (2, 2)
    assert ledger.sharpes(data_hash=digest).shape == (2,)


def test_a_repeated_fit_finds_its_run_and_learns_nothing_anew(tmp_path, monkeypatch):
    first = fitter(config(), workspace=tmp_path, name="v")(VALIDATION, span(0, 400), 1)

    def forbidden(_trainer):
        raise AssertionError("it learned again")

    monkeypatch.setattr(Trainer, "_update", forbidden)
    again = fitter(config(), workspace=tmp_path, name="v")(VALIDATION, span(0, 400), 1)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert TrialLedger(tmp_path / "trials.jsonl").count() == 1


def test_without_evaluations_the_last_agent_is_returned(tmp_path):
    fit = fitter(config(validation__every_updates=0), workspace=tmp_path, name="v")
    agent = fit(VALIDATION, span(0, 400), 1)
    assert not (tmp_path / "v" / "fold-0-seed-1" / "best").exists()
    assert agent.binding.values["train_span"][0] == START


def test_an_interrupted_fit_is_no_failure_and_goes_on(tmp_path, monkeypatch):
    whole = fitter(config(), workspace=tmp_path / "w", name="v")(VALIDATION, span(0, 400), 1)
    real = Trainer._update

    def signalled(trainer):
        if trainer.ppo.update_count == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(trainer)

    fit = fitter(config(), workspace=tmp_path, name="v")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", signalled)
        with pytest.raises(Interrupted) as caught:
            fit(VALIDATION, span(0, 400), 1)
    assert caught.value.signal == signal.SIGTERM
    assert not isinstance(caught.value, Exception)
    agent = fit(VALIDATION, span(0, 400), 1)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, agent.state_dict()[name]), name


@pytest.mark.refusal
def test_a_training_that_keeps_diverging_is_refused_and_on_record(tmp_path, monkeypatch):
    def broken(_trainer):
        raise Diverged("weights after the update are not finite")

    monkeypatch.setattr(Trainer, "_update", broken)
    out = tmp_path / "v" / "run"
    with pytest.raises(StormsailError) as caught:
        train_agent(config(), out, ledger=tmp_path / "trials.jsonl")
    assert str(caught.value) == (
        f"the training in {out} must finish; found weights after the update are not finite; the "
        "run was rolled back 2 times before. Lower `ppo.learning_rate`, and look at what lies in "
        "`refused` there. [run-stopped]"
    )
    refused = (ConfigError, ArgumentError, ArtifactError)  # what would end a validation
    assert not isinstance(caught.value, refused)
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["started", "stopped"]


@pytest.mark.refusal
def test_a_task_without_bars_cannot_be_fitted(tmp_path):
    with pytest.raises(ConfigError) as caught:
        fitter(small(), workspace=tmp_path, name="v")
    assert str(caught.value) == (
        "`task.name` must be `market`, which has bars to walk forward on; found "
        "`CartPoleNoVel-v1`. Validate a configuration of the market. [config-value]"
    )


def test_progress_names_the_run(tmp_path):
    heard = []
    fit = fitter(
        config(),
        workspace=tmp_path,
        name="v",
        on_progress=lambda name, progress: heard.append((name, progress.update)),
    )
    fit(VALIDATION, span(0, 400), 1)
    assert heard == [("fold-0-seed-1", update) for update in range(1, 7)]


def test_an_interruption_reaches_the_parent_of_a_worker():
    run = SimpleNamespace(path="runs/a", reason="SIGTERM came", signal=15)
    back = pickle.loads(pickle.dumps(Interrupted(run)))  # noqa: S301 - our own bytes
    assert type(back) is Interrupted
    assert (str(back), back.signal) == ("runs/a: SIGTERM came", 15)
