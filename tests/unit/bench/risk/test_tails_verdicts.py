"""Claims of `stormsail bench tails`: what they are held to, on average and seed by seed."""

import json

import pytest
import typer

from stormsail.bench.risk import tails as bench
from stormsail.bench.risk import tails_verdicts
from stormsail.cli.bench import risk as command

KAPPA, LAMBDA = "κ 1", "λ-return 0.95"
DEFAULT, CATEGORICAL = bench.DEFAULT.name, bench.CATEGORICAL.name
WHERE = "on average and in four of five seeds"


def tail(**changes):
    fields = {
        "world": "chain", "case": DEFAULT, "seed": 0, "coverage": 0.5, "predicted": -1.0,
        "true": -2.0, "error": -0.03, "resolution": -0.02, "spread": 1.0,
    }  # fmt: skip
    return bench.Tail(**{**fields, **changes})


def verdicts_of(world, case, **figures):
    """Return the verdicts of seeds, one for each value of a figure, or of one seed."""
    count = max((len(value) for value in figures.values()), default=1)
    rows = [
        tail(world=world, case=case, seed=seed, **{k: v[seed] for k, v in figures.items()})
        for seed in range(count)
    ]
    return tails_verdicts.verdicts(tails_verdicts.summaries(rows))


@pytest.mark.parametrize(
    ("world", "case", "coverage", "low", "high"),
    [
        ("chain", DEFAULT, 2.0, -5.0, 5.0),
        ("chain-skewed", DEFAULT, 2.0, -5.0, 5.0),
        ("garch-jump", DEFAULT, 5.0, -7.0, 3.0),  # 5 about the -2 of exact quantiles
        ("chain", CATEGORICAL, 2.0, -5.0, 5.0),
        ("chain-skewed", CATEGORICAL, 2.0, -5.0, 5.0),
        ("garch-jump", CATEGORICAL, 5.0, -10.0, 10.0),
    ],
)
def test_the_default_cases_must_predict_the_tail_on_every_world(world, case, coverage, low, high):
    (verdict,) = verdicts_of(world, case)
    grid = (world, case) == ("garch-jump", DEFAULT)
    words = " of what exact quantiles on the same grid say" if grid else ""
    assert verdict.claim == (
        f"{world}, {case}: every level is covered within {coverage:g} points, "
        f"CVaR predicted within {(high - low) / 2:g} %{words}, {WHERE}"
    )
    off = "-1.00 ± 0.00 % beyond the -2.00 % of the grid" if grid else "-3.00 ± 0.00 %"
    worst = "-1.00" if grid else "-3.00"
    assert (verdict.measured, verdict.passed) == (
        f"off by 0.50 ± 0.00 points (worst 0.50 with seed 0; within in 1 of 1) and {off} "
        f"(worst {worst} with seed 0; within in 1 of 1)",
        True,
    )
    for coverage_off, error_off, passed in (
        (coverage - 0.1, low + 0.1, True),
        (coverage - 0.1, high - 0.1, True),
        (coverage + 0.1, 0.0, False),
        (0.0, low - 0.1, False),
        (0.0, high + 0.1, False),
    ):
        (verdict,) = verdicts_of(world, case, coverage=[coverage_off], error=[error_off / 100.0])
        assert verdict.passed is passed


def test_errors_of_opposite_sign_do_not_make_a_critic_right():
    """Their mean is 0; two of five are off by 20 %."""
    (verdict,) = verdicts_of("chain", DEFAULT, error=[0.2, -0.2, 0.0, 0.0, 0.0], coverage=[0.5] * 5)
    assert not verdict.passed
    assert verdict.measured.endswith(
        " and 0.00 ± 14.14 % (worst 20.00 with seed 0; within in 3 of 5)"
    )
    (verdict,) = verdicts_of("chain", DEFAULT, error=[0.0, -0.2, 0.0, 0.0, 0.0], coverage=[0.5] * 5)
    assert verdict.passed  # four of five and a mean of -4 %
    assert "(worst -20.00 with seed 1; within in 4 of 5)" in verdict.measured


def test_one_seed_of_five_may_be_off_but_not_so_far_that_the_mean_is():
    assert verdicts_of("chain", DEFAULT, coverage=[1.0, 1.0, 1.0, 1.0, 5.0], error=[0.0] * 5)[
        0
    ].passed
    (verdict,) = verdicts_of("chain", DEFAULT, coverage=[1.0, 1.0, 1.0, 1.0, 6.5], error=[0.0] * 5)
    assert not verdict.passed
    assert (
        "off by 2.10 ± 2.46 points (worst 6.50 with seed 4; within in 4 of 5)" in verdict.measured
    )
    (verdict,) = verdicts_of("chain", DEFAULT, coverage=[0.1, 0.1, 0.1, 2.5, 2.5], error=[0.0] * 5)
    assert not verdict.passed  # a mean of 1.06, and two of five beyond 2
    assert "within in 3 of 5" in verdict.measured
    assert not verdicts_of("chain", DEFAULT, coverage=[0.1, 0.1, 0.1, 2.5], error=[0.0] * 4)[
        0
    ].passed


def test_what_the_grid_is_off_by_is_that_of_each_seed():
    """One seed is off by 6 % on a grid of -6 %, the next by 6 % on an exact one."""
    figures = {"error": [-0.06, 0.06], "resolution": [-0.06, 0.0], "coverage": [0.5] * 2}
    (verdict,) = verdicts_of("garch-jump", DEFAULT, **figures)
    assert not verdict.passed
    assert verdict.measured.endswith(
        "3.00 ± 4.24 % beyond the -3.00 % of the grid (worst 6.00 with seed 1; within in 1 of 2)"
    )


@pytest.mark.parametrize(("case", "least", "most"), [(KAPPA, 15, 40), (LAMBDA, 50, 70)])
def test_what_is_known_to_be_short_must_be_as_short_as_that(case, least, most):
    """As the formulas say: 22.7 % of a threshold of 1 at 21 levels, 58.5 % of lambda-returns."""
    parts = (least + 1, most - 1, least - 1, most + 1)
    passed = [verdicts_of("chain", case, error=[-part / 100.0])[0].passed for part in parts]
    assert passed == [True, True, False, False]
    (verdict,) = verdicts_of("chain", case, error=[-0.60])
    assert verdict.claim == f"chain, {case}: CVaR is understated by {least} to {most} %, {WHERE}"
    inside = int(case == LAMBDA)
    assert verdict.measured == (
        f"off by -60.00 ± 0.00 % (worst -60.00 with seed 0; within in {inside} of 1)"
    )
    middle = -(least + most) / 200.0
    (verdict,) = verdicts_of(
        "chain", case, error=[middle, middle, middle, middle + 0.2, middle - 0.2]
    )
    assert not verdict.passed


def test_claims_are_about_cases_that_are_measured():
    held = (DEFAULT, CATEGORICAL)
    assert {*held, *tails_verdicts.SHORT} <= {case.name for case in bench.CASES}
    assert set(tails_verdicts.BOUNDS) == {(world, case) for world in bench.WORLDS for case in held}
    assert dict(next(c for c in bench.CASES if c.name == KAPPA).changes) == {
        "critic.huber_kappa": 1.0
    }
    assert verdicts_of("chain", "N 16") == verdicts_of("chain-skewed", KAPPA) == []


# --------------------------------------------------------------------------------- state by state


def states_of(errors, case=DEFAULT, **fields):
    """Return the rows of states, by name, with the errors of their seeds in percent."""
    return [
        tail(
            world="ruin", case=case, state=state, seed=seed, error=error / 100.0,
            true_mean=1.0, predicted_mean=2.0, **{"event": 0.08, **fields},
        )
        for state, values in errors.items()
        for seed, error in enumerate(values)
    ]  # fmt: skip


def test_states_are_held_to_a_bound_by_how_likely_their_event_is():
    for event, error, passed in (
        (0.08, 9.9, True), (0.08, -9.9, True), (0.08, 10.1, False), (0.08, -10.1, False),
        (0.05, 24.9, True), (0.05, -25.1, False), (1.0, 11.0, False), (0.0, 11.0, True),
    ):  # fmt: skip
        rows = states_of({"a": [error]}, event=event)
        (verdict,) = tails_verdicts.verdicts(tails_verdicts.summaries(rows))
        assert verdict.passed is passed, (event, error)


def test_every_state_must_hold_and_the_worst_is_named():
    """The second is beyond its bound; the third is further off and within its wider one."""
    rows = states_of({"a": [1.0, -1.0], "b": [-12.0, -14.0]})
    rows += states_of({"c": [-20.0, -24.0]}, event=0.02)
    lines = tails_verdicts.summaries(rows)
    (verdict,) = tails_verdicts.verdicts(lines)
    assert verdict.claim == (
        f"ruin, {DEFAULT}: CVaR is predicted within 10 % where the event is likelier than 5% and "
        f"within 25 % elsewhere, in every state, {WHERE}"
    )
    assert verdict.measured == (
        "in 2 of 3 states; worst: b, off by -13.00 ± 1.41 % (worst -14.00 with seed 1; within in "
        "0 of 2), where 10 % are allowed"
    )
    assert verdict.passed is False
    assert [(line.state, line.bound, line.within) for line in lines] == [
        ("a", 10.0, 2), ("b", 10.0, 0), ("c", 25.0, 2),
    ]  # fmt: skip
    assert [line.state for line in tails_verdicts.worst_states(lines)] == ["b"]


def test_the_worst_state_is_not_one_whose_errors_cancel():
    rows = states_of({"a": [8.0, 8.0], "b": [-30.0, 30.0]})
    lines = tails_verdicts.summaries(rows)
    assert [line.state for line in tails_verdicts.worst_states(lines)] == ["b"]
    (verdict,) = tails_verdicts.verdicts(lines)
    assert not verdict.passed


def test_cases_are_judged_apart_and_further_ones_as_the_default():
    further = "critic.learning_rate_factor=5"
    rows = states_of({"a": [1.0]}) + states_of({"a": [11.0]}, case=further)
    rows += [tail(case=further), tail(case="N 32")]
    verdicts = tails_verdicts.verdicts(tails_verdicts.summaries(rows))
    assert [(verdict.claim.split(":")[0], verdict.passed) for verdict in verdicts] == [
        (f"chain, {further}", True), (f"ruin, {DEFAULT}", True), (f"ruin, {further}", False),
    ]  # fmt: skip


def test_the_tables_show_every_state_and_the_worst(monkeypatch, capsys):
    rows = [tail(), *states_of({"safe": [1.0, 1.0], "8% ruin": [-12.0, -14.0]})]
    monkeypatch.setattr(bench, "measure_all", lambda *_, **__: rows)
    with pytest.raises(typer.Exit):
        command.tails(worlds="ruin", seeds=2)
    printed = capsys.readouterr().out
    assert printed.count("CVaR at 5 %, gamma 0.99") == 3
    whole, rest = printed.split("state by state")
    every, worst = rest.split("the worst state of each world and case")
    assert "ruin" not in whole
    assert ("safe" in every, "8% ruin" in every) == (True, True)
    assert ("safe" in worst, "8% ruin" in worst) == (False, True)
    assert "0 of 2" in worst
    cells = worst.split("│")
    assert [cells[place].strip() for place in (5, 6, 8)] == ["-1 ± 0", "-2", "1"]  # CVaR, its truth


def test_the_command_fails_with_its_claims(monkeypatch, capsys):
    rows = [tail(), tail(case=CATEGORICAL, coverage=3.0), tail(case=LAMBDA, error=-0.58)]
    monkeypatch.setattr(bench, "measure_all", lambda *_, **__: rows)
    with pytest.raises(typer.Exit) as left:
        command.tails(worlds="chain", seeds=1)
    assert left.value.exit_code == 1
    printed = capsys.readouterr().out
    assert printed.count(": holds; ") == 2
    assert printed.count(": FAILS; ") == 1
    assert (
        f"CVaR predicted within 5 %, {WHERE}: FAILS; off by 3.00 ± 0.00 points "
        "(worst 3.00 with seed 0; within in 0 of 1) and -3.00 ± 0.00 % " in printed
    )
    monkeypatch.setattr(bench, "measure_all", lambda *_, **__: [rows[0], rows[2]])
    command.tails(worlds="chain", seeds=1)
    assert capsys.readouterr().out.count(": holds; ") == 2


def test_the_file_holds_every_row_so_that_tables_can_be_rechecked(monkeypatch, tmp_path):
    """Also where a claim fails: that is when somebody looks."""
    rows = [
        tail(seed=seed, world=world, coverage=seed + 0.25, values=(-1.0, 1.0), levels=(0.25, 0.75))
        for world in ("chain", "garch-jump")
        for seed in range(5)
    ]
    monkeypatch.setattr(bench, "measure_all", lambda *_, **__: rows)
    out = tmp_path / "tails.json"
    with pytest.raises(typer.Exit):
        command.tails(worlds="chain", out=out)
    read = [
        bench.Tail(**{**row, "values": tuple(row["values"]), "levels": tuple(row["levels"])})
        for row in json.loads(out.read_text())["rows"]
    ]
    assert read == rows
