"""The walk forward: what is read, what is counted, what fails, and what is opened once."""

from dataclasses import replace

import numpy as np
import pytest

from stormsail.core.clock import ManualClock
from stormsail.core.errors import ArgumentError, ChoiceError, ConfigError, DataError, RangeError
from stormsail.core.files.artifact import encode_artifact
from stormsail.evaluation import ValidationConfig, validate
from stormsail.evaluation.robustness.self_tests import SelfTest
from stormsail.evaluation.stats.sharpe import effective_trials, trials_benchmark
from stormsail.evaluation.stats.trials import TrialLedger
from stormsail.evaluation.walk_forward import run as validation
from stormsail.evaluation.walk_forward.files import (
    KIND,
    contents_of,
    further_documents,
    validation_document,
)
from stormsail.evaluation.walk_forward.judge import _RunSet, dead_fills
from stormsail.market import Panel
from stormsail.market.splits import Span
from stormsail.market.synthetic import generate
from validation_lab import (
    GAP,
    HOUR,
    LEAK,
    fitter,
    knowing,
    market,
    oracle_world,
    settings,
    untrained,
    world,
)

ROWS = 200
LAST = 30  # rows of the final test span
FOLD = (ROWS - LAST - 2 * GAP) // 4
BARE = {"baselines": False, "costs": False}


@pytest.fixture(scope="module")
def bars():
    return world(ROWS)


@pytest.fixture(scope="module")
def small():
    """Two folds and two seeds, without baselines and costs: half a second each."""
    return settings(folds=2, **BARE)


@pytest.fixture
def quick(monkeypatch):
    """Leave the self-tests out, which take half of the time, where they are not the matter."""
    passed = (SelfTest("none", True, ""),)
    monkeypatch.setattr(_RunSet, "self_tests", lambda *_: passed)


@pytest.fixture(scope="module")
def full():
    """Everything that can be asked, for two symbols."""
    both = world(300, symbols=2)
    return validate(both, settings(folds=2, stress=True), fit=fitter(both)), both


def ledger_at(tmp_path):
    return TrialLedger(tmp_path / "trials.jsonl", clock=ManualClock(1_700_000_000_000_000_000))


def files(result):
    return encode_artifact(kind=KIND, contents=contents_of(result))


def reasons(result):
    return {one.name: one.holds for one in result.verdict.reasons}


# ------------------------------------------------------------------ what is judged


def test_folds_are_traded_one_after_the_other_without_a_hole(full):
    result, bars = full
    pooled = result.judgement.pooled
    hour = bars.interval.milliseconds
    assert np.diff(pooled.ts).tolist() == [hour] * (len(pooled.ts) - 1)
    # 300 - 45 of the test span - 12: 243 rows; (243 - 12) // 4 = 57 in each of two folds
    assert len(pooled.returns) == 2 * 57 - 1
    assert pooled.ts[0] == bars.ts[243 - 114] + hour
    assert pooled.ts[-1] == bars.ts[242] + hour
    assert [(one.fold.number, one.seed) for one in result.runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_each_fold_begins_with_what_the_one_before_has_left(full):
    result, _ = full
    pooled = result.judgement.pooled
    first, second = result.runs[:2], result.runs[2:]
    assert pooled.equity[0] == 2 * 2 * 10_000.0  # two seeds of two accounts
    assert [one.backtest.equity[0] for one in first] == [20_000.0] * 2
    assert pooled.equity[1:57].tolist() == pytest.approx(
        sum(one.backtest.equity for one in first)[1:57].tolist(), rel=1e-12
    )
    at_switch = int(np.searchsorted(pooled.ts, second[0].backtest.ts[0]))
    assert at_switch == 57
    assert [one.backtest.equity[0] for one in second] == pytest.approx(
        [pooled.equity[57] / 2] * 2, rel=1e-12
    )
    assert pooled.equity[58:].tolist() == pytest.approx(
        sum(one.backtest.equity for one in second)[1:].tolist(), rel=1e-9
    )


def test_baselines_trade_the_same_bars_with_the_same_capital(full):
    result, bars = full
    pooled = result.judgement.pooled
    for name, baseline in result.judgement.baselines.items():
        assert baseline.ts.tolist() == pooled.ts.tolist(), name
        assert baseline.equity[0] == pytest.approx(pooled.equity[0])
    hold = result.judgement.baselines["buy and hold"]
    first = bars.open[130].numpy()
    grown = 20_000.0 * (bars.close[242].numpy() / first)
    assert hold.equity[-1] == pytest.approx(grown.sum(), rel=0.01)  # but for costs and funding


def test_the_sweep_at_the_cost_charged_is_the_pass_itself(full):
    result, _ = full
    document = further_documents(result.judgement, 0.05)["costs"]
    assert document["charged_bp"] == pytest.approx(7.0, abs=0.01)
    sweep = document["replay"]["sweep_bp"]
    assert list(sweep) == ["0", "2", "5", "10", "20"]
    total = result.judgement.pooled.total_return
    assert sweep["5"]["total_return"] > total > sweep["10"]["total_return"]
    # the return falls with costs almost in a line: 7 bp lie two fifths of the way from 5 to 10
    between = 0.6 * sweep["5"]["total_return"] + 0.4 * sweep["10"]["total_return"]
    assert total == pytest.approx(between, abs=2e-3)


def test_stress_and_every_other_document_are_there(full):
    result, _ = full
    document = further_documents(result.judgement, 0.05)
    assert sorted(document) == [
        "baselines", "calibration", "costs", "performance", "significance", "stress",
    ]  # fmt: skip
    assert list(document["stress"]) == [
        "spread x2", "spread x5", "orders 1 bar late", "bars lost", "prices stale", "bars missing",
        *(name for name in document["stress"] if name.startswith("crash ")),
    ]  # fmt: skip
    assert 1 <= sum(name.startswith("crash ") for name in document["stress"]) <= 3
    usual = result.judgement.pooled.total_return
    wide = [document["stress"][name]["total_return"] for name in ("spread x2", "spread x5")]
    assert usual > wide[0] > wide[1]
    assert document["stress"]["spread x2"]["bars"] == len(result.judgement.pooled.returns)


def test_self_tests_of_a_sound_ledger_hold(full):
    result, _ = full
    assert [(one.name, one.holds) for one in result.judgement.self_tests] == [
        ("oracle", True),
        ("noise", True),
        ("permuted decisions", True),
        ("fees", True),
        ("look-ahead", True),
    ]


def test_an_agent_that_knows_the_next_return_must_be_explained():
    bars = oracle_world(400)
    own = market(features=tuple(one.model_dump() for one in LEAK))
    rules = settings(folds=2, alpha=0.25, **{"backtest.market": own.model_dump()})
    result = validate(bars, rules, fit=knowing(bars, gamma=0.1))
    # what it earns is the clairvoyant's own return: a leak, until somebody says why not
    assert result.verdict.words == "Not proven: does not hold: clairvoyant, losing year."
    texts = {"clairvoyant": "the column is made so", "losing year": "the same"}
    told = validate(bars, rules, fit=knowing(bars, gamma=0.1), explanations=texts)
    assert told.verdict.words == "Promote: all 17 rules hold."
    assert told.verdict.explanations == texts
    with pytest.raises(ChoiceError, match="an explanation must be some text"):
        validate(bars, rules, fit=knowing(bars), explanations={"ruin": "bad luck"})
    # 163 bars of 0.8 % a bar, the mean size of a return, less 7 bp of two weights every other one
    assert np.log1p(result.judgement.pooled.total_return) == pytest.approx(163 * 0.0073, rel=0.15)


def test_an_untrained_agent_is_not(full):
    result, _ = full
    assert result.verdict.decision != "promote"


def test_answers_from_elsewhere_join_the_self_tests(bars, small):
    failed = SelfTest("learner", False, "It did not learn.")
    result = validate(bars, small, fit=fitter(bars), more_self_tests=(failed,))
    assert result.judgement.self_tests[-1] == failed
    assert reasons(result)["self-tests"] is False
    assert result.verdict.decision == "reject"


def test_a_plan_trades_the_baselines_and_writes_nothing(tmp_path, bars, small):
    ledger = ledger_at(tmp_path)
    power = validation.plan(bars, small.replace(baselines=True), ledger=ledger, gamma=0.99)
    assert not ledger.path.exists()
    assert power.bars == 2 * FOLD - 1
    assert (power.folds, power.seeds, power.trials) == (2, 2, 2)
    assert list(power.needed)[2:] == [
        "better than buy and hold", "better than volatility target", "better than momentum",
    ]  # fmt: skip
    assert power.undecided == (
        f"mean return and baselines: {2 * FOLD - 1} of 100 bars",
        "tail over 230 bars: 0 of 200 windows, a condition beside the verdict",
    )
    assert power.sharpe is None


def test_fills_in_dead_bars_are_counted(bars, small):
    result = validate(bars, small, fit=fitter(bars))
    one = max((run.backtest for run in result.runs), key=lambda each: len(each.trades))
    assert dead_fills(one, bars) == 0
    filled = np.flatnonzero(one.bars["traded"][:, 0] != 0.0)
    rows = np.searchsorted(bars.ts.numpy(), one.ts[filled])
    quiet = bars.volume.clone()
    quiet[rows[:3]] = 0.0
    assert len(filled) > 3
    assert dead_fills(one, replace(bars, volume=quiet)) == 3
    before = bars.volume.clone()
    before[rows[0] - 1] = 0.0  # the bar at whose close the first was decided: no order fills there
    assert dead_fills(one, replace(bars, volume=before)) == 0
    high, low = bars.high.clone(), bars.low.clone()
    high[rows[0]] = low[rows[0]] = bars.close[rows[0] - 1]
    assert dead_fills(one, replace(bars, high=high, low=low)) == 1


# ------------------------------------------------------------------ what is read


def test_bars_of_the_closed_test_span_are_never_read(bars, small):
    rules = small.replace(baselines=True)
    result = validate(bars, rules, fit=fitter(bars))
    closed = result.plan.final.test.rows(bars.ts.numpy())
    assert closed == slice(ROWS - LAST, ROWS)

    def spoilt(tensor):
        changed = tensor.clone()
        changed[closed.start - GAP :] = changed[closed.start - GAP :] * 3.0 + 1.0
        return changed

    names = ("open", "high", "low", "close", "volume", "funding")
    other = replace(
        bars,
        optional={name: spoilt(one) for name, one in bars.optional.items()},
        **{name: spoilt(getattr(bars, name)) for name in names},
    )
    assert files(validate(other, rules, fit=fitter(other))) == files(result)


@pytest.mark.usefixtures("quick")
def test_fit_gets_the_spans_of_the_plan_and_every_seed(bars, small):
    asked = []

    def fit(config, span, seed):
        asked.append((span, seed))
        return untrained(bars, span, seed, rules=config.backtest.market)

    announced = []
    result = validate(bars, small, fit=fit, ahead=announced.extend)
    one, two = (fold.train for fold in result.plan.folds)
    assert asked == announced == [(one, 0), (one, 1), (two, 0), (two, 1)]


@pytest.mark.refusal
@pytest.mark.parametrize("which", ["train_span", "validation_span"])
def test_an_agent_that_saw_bars_beyond_its_span_is_refused(bars, small, which):
    def fit(config, span, seed):
        later = Span(span.start_ms, span.end_ms + 1)
        return untrained(bars, span, seed, rules=config.backtest.market, **{which: later})

    what = "trained" if which == "train_span" else "chosen"
    with pytest.raises(RangeError, match=f"an agent of fold 0 must have been {what} on bars of"):
        validate(bars, small, fit=fit)


@pytest.mark.refusal
def test_an_agent_that_looks_back_further_than_the_embargo_is_refused(bars, small):
    own = market(features=({"name": "log_return", "parameters": {"horizon": 1}},))
    rules = small.replace(**{"backtest.market": own.model_dump()})
    with pytest.raises(RangeError, match="the embargo must be at least 11 bars, the 6 that"):
        validate(bars, rules, fit=lambda _, span, seed: untrained(bars, span, seed))


@pytest.mark.refusal
def test_too_few_bars_are_refused_before_anything_is_trained():
    def never(*_):
        raise AssertionError

    with pytest.raises(DataError, match="with 3 folds must have at least 240 bars"):
        validate(world(200), settings(), fit=never)


# ------------------------------------------------------------------ same bytes


@pytest.mark.usefixtures("quick")
def test_two_calls_give_the_same_bytes(bars, small):
    one, two = (files(validate(bars, small, fit=fitter(bars))) for _ in range(2))
    assert one == two
    other = validate(bars, small.replace(seeds=(0, 2)), fit=fitter(bars))
    assert files(other) != one


# ------------------------------------------------------------------ what fails


DIVERGED = RuntimeError("it diverged")


def failing(bars, *, folds, seeds=(0, 1), error=DIVERGED):
    """Return a fit that fails in some folds, told by the ends of their spans."""
    ends = []

    def fit(config, span, seed):
        if span.end_ms not in ends:
            ends.append(span.end_ms)
        if ends.index(span.end_ms) in folds and seed in seeds:
            raise error
        return untrained(bars, span, seed, rules=config.backtest.market)

    return fit


@pytest.mark.usefixtures("quick")
def test_a_failed_training_is_shown_and_its_share_stays_in_cash(bars, small):
    result = validate(bars, small, fit=failing(bars, folds=(1,), seeds=(0,)))
    document = validation_document(result)["runs"]
    assert [(one["status"], one["reason"]) for one in document] == [
        ("finished", ""),
        ("finished", ""),
        ("failed", "RuntimeError: it diverged"),
        ("finished", ""),
    ]
    assert (document[2]["metrics"], document[2]["order_hash"], document[2]["agent"]) == (
        {},
        None,
        None,
    )
    assert np.ptp(result.judgement.pooled.seed_equity[FOLD:, 0]) == 0.0
    assert reasons(result)["training"] is True


@pytest.mark.usefixtures("quick")
def test_a_fold_that_failed_in_every_seed_rejects(bars, small):
    result = validate(bars, small, fit=failing(bars, folds=(1,)))
    words = {one.name: one.words for one in result.verdict.reasons}
    assert reasons(result)["training"] is False
    assert words["training"] == (
        "In 1 of 2 folds at least one training finished; none did in fold 1."
    )
    assert result.verdict.decision == "reject"
    assert np.ptp(result.judgement.pooled.equity[FOLD:]) == 0.0


@pytest.mark.usefixtures("quick")
def test_where_everything_failed_a_validation_still_says_so(tmp_path, bars, small):
    ledger = ledger_at(tmp_path)
    result = validate(bars, small, fit=failing(bars, folds=(0, 1)), ledger=ledger)
    assert result.verdict.decision == "reject"
    assert result.judgement.pooled.total_return == 0.0
    assert [one.status for one in ledger.read().trials] == ["started", "failed"]
    assert ledger.count() == 0


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("config-value", wrong="a", found="b", remedy="C."),
        TypeError("a bug"),
        AssertionError("a bug"),
    ],
)
def test_a_refusal_or_a_bug_ends_the_validation_and_is_no_trial(tmp_path, bars, small, error):
    ledger = ledger_at(tmp_path)
    with pytest.raises(type(error)):
        validate(bars, small, fit=failing(bars, folds=(1,), error=error), ledger=ledger)
    assert [one.status for one in ledger.read().trials] == ["started", "failed"]
    assert ledger.read().trials[-1].extra["reason"] == str(error)
    assert ledger.count() == 0


@pytest.mark.usefixtures("quick")
def test_what_was_tried_since_a_failure_deflates_what_begins_again(tmp_path, bars, small):
    """Else one could fail first, try a hundred others, and be deflated by none of them."""
    ledger = ledger_at(tmp_path)
    with pytest.raises(TypeError):
        validate(bars, small, fit=failing(bars, folds=(0,), error=TypeError("a")), ledger=ledger)
    for number in range(3):
        ledger.record(
            "training", f"{number}", config_hash="", data_hash="", sharpe_per_bar=None, bars=0
        )
    result = validate(bars, small, fit=fitter(bars), ledger=ledger)
    assert result.judgement.trials.count == 3 + 2
    assert ledger.count() == 3 + 1


@pytest.mark.usefixtures("quick")
def test_a_result_is_not_taken_back_by_failing_later(tmp_path, bars, small):
    """Else one could look at a result, fail, and have tried nothing."""
    ledger = ledger_at(tmp_path)
    first = validate(bars, small, fit=fitter(bars), ledger=ledger)
    with pytest.raises(TypeError):
        validate(bars, small, fit=failing(bars, folds=(0,), error=TypeError("a")), ledger=ledger)
    assert [one.status for one in ledger.read().trials] == ["started", "finished", "failed"]
    assert ledger.count() == 1
    # nor does it deflate itself when it goes on
    again = validate(bars, small, fit=fitter(bars), ledger=ledger)
    assert again.judgement.trials.count == first.judgement.trials.count == 2
    assert (
        validate(
            bars, small.replace(seed=1), fit=fitter(bars), ledger=ledger
        ).judgement.trials.count
        == 1 + 2
    )


@pytest.mark.usefixtures("quick")
def test_an_account_that_was_stopped_rejects(bars, small):
    rules = small.replace(**{"backtest.market.stops.drawdown": 0.01})
    result = validate(bars, rules, fit=fitter(bars))
    assert reasons(result)["ruin"] is False
    assert result.verdict.decision == "reject"


# ------------------------------------------------------------------ the ledger


@pytest.mark.usefixtures("quick")
def test_a_validation_is_one_trial_with_its_sharpe_ratio(tmp_path, bars, small):
    ledger = ledger_at(tmp_path)
    result = validate(bars, small, fit=fitter(bars), ledger=ledger, name="first")
    began, ended = ledger.read().trials
    assert (began.kind, began.name, began.status) == ("validation", "first", "started")
    assert (ended.kind, ended.status, ended.bars) == ("validation", "finished", 2 * FOLD - 1)
    returns = result.judgement.pooled.returns
    assert ended.sharpe_per_bar == pytest.approx(returns.mean() / returns.std(ddof=1))
    assert ended.extra["verdict"] == result.verdict.decision
    assert ended.data_hash == result.data_hash
    assert ledger.count() == 1


@pytest.mark.usefixtures("quick")
def test_what_was_tried_before_deflates_and_what_comes_after_does_not(tmp_path, bars, small):
    ledger = ledger_at(tmp_path)
    for kind, sharpe in (("validation", 0.5), ("validation", -0.5), ("training", 9.0)):
        ledger.record(kind, "old", config_hash="", data_hash="x", sharpe_per_bar=sharpe, bars=9)

    def fit(config, span, seed):
        ledger.record("training", "own", config_hash="", data_hash="x", sharpe_per_bar=9.0, bars=9)
        return untrained(bars, span, seed, rules=config.backtest.market)

    alone = validate(bars, small, fit=fitter(bars))
    result = validate(bars, small, fit=fit, ledger=ledger)
    count = 2 * FOLD - 1
    seeds = effective_trials(alone.judgement.pooled.seed_returns)
    assert alone.judgement.trials.count == seeds == 2
    assert alone.judgement.trials.words.startswith(
        "0 trials of the workspace before this one, and 2 seeds of it, which count as 2; "
    )
    assert result.judgement.trials.count == 5
    assert result.judgement.significance.trials == 5
    # of the trials before it, the validations alone have a ratio: 0.5 over 9 bars is 1.5 standard
    # errors, and so many over the bars of this one
    assert result.judgement.trials.with_sharpe == 2
    spread = np.std([1.5, -1.5], ddof=1) / np.sqrt(count)
    assert result.judgement.trials.sharpe_std == pytest.approx(spread)
    assert result.judgement.significance.expected_maximum.value == pytest.approx(
        trials_benchmark(np.array([1.5, -1.5]) / np.sqrt(count), trials=5, bars=count)
    )
    deflated = [one.judgement.significance.deflated.value for one in (alone, result)]
    assert deflated[1] < deflated[0]
    # again: the same validation, and the same trials before it
    again = validate(bars, small, fit=fit, ledger=ledger)
    assert files(again) == files(result)
    names = [one.name for one in ledger.read().trials if one.kind == "validation"]
    assert names == ["old", "old", "validation", "validation"]


# ------------------------------------------------------------------ the final test span


@pytest.mark.refusal
def test_the_test_span_is_not_opened_without_a_ledger(bars, small):
    with pytest.raises(ArgumentError) as refused:
        validate(bars, small.replace(open_test=True), fit=fitter(bars))
    assert str(refused.value) == (
        "to open the final test span there must be a ledger that says so; found none. Pass "
        "`ledger`, or leave `open_test` out. [missing-argument]"
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.refusal
def test_the_test_span_is_opened_once(tmp_path, bars, small):
    ledger, rules = ledger_at(tmp_path), small.replace(open_test=True)
    closed = validate(bars, small, fit=fitter(bars), ledger=ledger)
    announced = []
    result = validate(bars, rules, fit=fitter(bars), ahead=announced.extend, ledger=ledger)
    assert announced[-2:] == [(result.plan.final.train, 0), (result.plan.final.train, 1)]
    document = validation_document(result)
    assert validation_document(closed)["test"] is None
    assert validation_document(closed)["test_span"]["openings"] == 0
    assert document["test_span"]["bars"] == LAST
    assert (document["test_span"]["opened"], document["test_span"]["openings"]) == (True, 1)
    assert document["test"]["bars"] == LAST - 1
    assert document["test"]["verdict"]["decision"] == result.final.verdict.decision
    spans = [*result.verdict.reasons, *result.verdict.conditions]
    assert "test span" in [one.name for one in spans]
    assert result.for_trading.fold is result.plan.final
    run = result.final.runs[0]
    assert run.fold.train.end_ms == int(bars.ts[ROWS - LAST - GAP])
    assert run.backtest.ts[0] == bars.ts[ROWS - LAST] + bars.interval.milliseconds
    kinds = [one.kind for one in ledger.read().trials]
    assert kinds == ["validation"] * 3 + ["test-opened", "validation"]
    for name in ("validation", "another"):
        with pytest.raises(ConfigError) as refused:
            validate(bars, rules, fit=fitter(bars), ledger=ledger, name=name)
        assert str(refused.value) == (
            "the final test span of these bars must be opened once only; found that `validation` "
            "opened it at 2023-11-14T22:13:20Z. Believe that result, or wait for bars that nobody "
            "has seen. [config-inconsistent]"
        )
    after = validate(bars, small, fit=fitter(bars), ledger=ledger)
    assert validation_document(after)["test_span"]["openings"] == 1
    told = (
        "the final test span was opened 1 time before, by validation `validation` at "
        "2023-11-14T22:13:20Z: it confirms nothing any more"
    )
    assert [one.words for one in after.verdict.conditions if one.name == "seal"] == [told]
    assert told in after.verdict.words
    assert "seal" not in [
        one.name for one in (*result.verdict.conditions, *closed.verdict.conditions)
    ]


@pytest.mark.usefixtures("quick")
@pytest.mark.refusal
def test_a_test_span_that_overlaps_an_opened_one_is_refused(tmp_path, bars, small):
    ledger, rules = ledger_at(tmp_path), small.replace(open_test=True)
    validate(bars, rules, fit=fitter(bars), ledger=ledger)
    with pytest.raises(ConfigError, match="must be opened once only"):
        validate(bars, rules.replace(test_share=0.2), fit=fitter(bars), ledger=ledger)
    # one bar fewer, a symbol more, another history: the same symbol at the same time
    fewer = bars.between(int(bars.ts[0]), int(bars.ts[-1]))
    later = bars.between(int(bars.ts[1]), int(bars.ts[-1]) + 1)
    for other in (fewer, later, world(ROWS, symbols=2), world(ROWS, seed=9)):
        with pytest.raises(ConfigError, match="must be opened once only"):
            validate(other, rules, fit=fitter(other), ledger=ledger)
    both = world(ROWS, symbols=2)
    beside = replace(
        both._each(lambda tensor: tensor[..., 1:]), symbols=both.symbols[1:], ts=both.ts
    )
    assert validate(beside, rules, fit=fitter(beside), ledger=ledger).openings == 1


@pytest.mark.refusal
@pytest.mark.usefixtures("quick")
def test_an_opening_that_names_no_span_is_one_of_the_same_bars(tmp_path, bars, small):
    ledger = ledger_at(tmp_path)
    result = validate(bars, small, fit=fitter(bars))
    ledger.record(
        "test-opened",
        "old",
        config_hash="",
        data_hash=result.data_hash,
        sharpe_per_bar=None,
        bars=0,
    )
    with pytest.raises(ConfigError, match="that `old` opened it"):
        validate(bars, small.replace(open_test=True), fit=fitter(bars), ledger=ledger)


@pytest.mark.usefixtures("quick")
def test_a_validation_that_died_after_the_opening_can_be_finished(tmp_path, bars, small):
    ledger, rules = ledger_at(tmp_path), small.replace(open_test=True)

    class Died(KeyboardInterrupt):
        pass

    kinds = []

    def dying(progress):
        kinds.append(progress.what)
        if progress.what.startswith("opening"):
            raise Died

    with pytest.raises(Died):
        validate(bars, rules, fit=fitter(bars), ledger=ledger, on_progress=dying)
    assert "test-opened" not in [one.kind for one in ledger.read().trials]

    real, ledger.record = ledger.record, None

    def record(kind, *given, **more):
        line = real(kind, *given, **more)
        if kind == "test-opened":
            raise Died
        return line

    ledger.record = record
    with pytest.raises(Died):
        validate(bars, rules, fit=fitter(bars), ledger=ledger)
    ledger.record = real
    result = validate(bars, rules, fit=fitter(bars), ledger=ledger)
    kinds = [one.kind for one in ledger.read().trials]
    assert kinds.count("test-opened") == 1
    assert result.openings == 1
    assert ledger.count() == 1


@pytest.mark.usefixtures("quick")
def test_the_opening_is_written_before_the_result_is_known(tmp_path, bars, small, monkeypatch):
    ledger, rules = ledger_at(tmp_path), small.replace(open_test=True)
    seen = []
    real = validation.backtest

    def watched(agent, panel, config):
        seen.append((len(panel.ts), len(ledger.openings())))
        return real(agent, panel, config)

    monkeypatch.setattr(validation, "backtest", watched)
    validate(bars, rules, fit=fitter(bars), ledger=ledger)
    assert seen == [(ROWS - LAST - GAP, 0)] * 4 + [(ROWS, 1)] * 2


@pytest.mark.usefixtures("quick")
def test_progress_is_told_step_by_step(bars, small):
    document = []
    validate(bars, small, fit=fitter(bars), on_progress=document.append)
    assert [tuple(one) for one in document] == [
        (0, 5, "training fold 0, seed 0"),
        (1, 5, "training fold 0, seed 1"),
        (2, 5, "training fold 1, seed 0"),
        (3, 5, "training fold 1, seed 1"),
        (4, 5, "judging"),
    ]


@pytest.mark.usefixtures("quick")
def test_bars_may_come_as_a_sequence(small):
    drawn = generate("noise", symbols=1, bars=ROWS, interval=HOUR, seed=4)
    panel = Panel.from_bars(drawn.bars)
    unfunded = small.replace(**{"backtest.market.funding_missing": "zero"})  # bars have no rates
    one = validate(drawn.bars, unfunded, fit=fitter(panel))
    assert files(one) == files(validate(panel, unfunded, fit=fitter(panel)))


def test_defaults_are_those_of_the_contract():
    plain = ValidationConfig()
    assert (plain.test_share, plain.open_test, plain.alpha) == (0.15, False, 0.05)
    assert plain.rules.model_dump() == {
        "deflated_sharpe": 0.95,
        "superiority_p": 0.05,
        "earning_share": 0.5,
        "cost_margin": 2.0,
        "clairvoyant_share": 0.5,
        "losing_year": 1e-6,
        "spot_floor_bp": 2.0,
        "perpetual_floor_bp": 1.5,
        "best_bars_share": 0.5,
        "conditional_capital": 0.25,
    }


# ------------------------------------------------------------------ policies


def sampling(bars, seeds=(0, 1)):
    """Return a `fit` whose agents all have the weights of seed 0; some were judged sampled."""
    made = fitter(bars, gain=1.0)

    def fit(config, span, seed):
        agent = made(config, span, 0)
        agent.judged_policy = "sampled" if seed in seeds else "greedy"
        return agent

    return fit


@pytest.mark.usefixtures("quick")
def test_each_agent_trades_by_the_policy_it_was_judged_by(bars, small):
    result = validate(bars, small, fit=sampling(bars, seeds=(1,)))
    assert [run.backtest.config.policy for run in result.runs] == ["greedy", "sampled"] * 2
    document = validation_document(result)
    assert [run["policy"] for run in document["runs"]] == ["greedy", "sampled"] * 2
    forced = small.replace(**{"backtest.greedy": True})
    result = validate(bars, forced, fit=sampling(bars, seeds=(1,)))
    assert [run.backtest.config.policy for run in result.runs] == ["greedy"] * 4
    first, second = result.runs[:2]
    assert first.backtest.order_hash == second.backtest.order_hash


@pytest.mark.usefixtures("quick")
def test_agents_that_sample_do_not_sample_alike_and_do_so_again(bars, small):
    """The same weights in both seeds: what they do differs by their draws alone."""
    first, again, other = (
        [run.backtest.order_hash for run in validate(bars, config, fit=sampling(bars)).runs]
        for config in (small, small, small.replace(**{"backtest.seed": 1}))
    )
    assert len(set(first)) == 4
    assert first == again
    assert not set(first) & set(other)


def test_self_tests_hold_for_agents_that_sample(bars, small):
    result = validate(bars, small, fit=sampling(bars))
    outcomes = {test.name: test.holds for test in result.judgement.self_tests}
    assert outcomes["look-ahead"] is True
