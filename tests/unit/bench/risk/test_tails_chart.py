"""Pictures of `docs/risk.md`: what they show is what was measured, or a formula."""

import math
import re

import pytest
import torch
import typer

from stormsail.bench.chart import HEIGHT, WIDTH
from stormsail.bench.risk import tails as bench
from stormsail.bench.risk import tails_chart
from stormsail.bench.risk.tails_chain import truth
from stormsail.cli.bench import risk as command


def tail(case, values, levels, world="chain", seed=0):
    known = truth("normal", gamma=0.99)
    return bench.Tail(
        world=world, case=case, seed=seed, coverage=0.0, predicted=0.0, true=known.cvar(0.05),
        error=0.0, resolution=0.0, spread=1.0, values=tuple(values), levels=tuple(levels),
    )  # fmt: skip


def circles(text):
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="(\S+)" cy="(\S+)"', text)]


@pytest.mark.parametrize("budget", [-0.2, -0.03, 0.0, 0.04])
def test_the_shortfall_below_a_budget_is_its_integral(budget):
    draws = 0.05 * torch.randn(
        2_000_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    expected = float((budget - draws).clamp(min=0.0).mean())
    assert tails_chart.shortfall(budget, 0.05) == pytest.approx(expected, abs=1e-4)


def test_after_the_last_bar_the_shortfall_is_what_is_missing():
    assert tails_chart.shortfall(-0.04, 0.0) == 0.0
    assert tails_chart.shortfall(0.03, 0.0) == 0.03
    assert tails_chart.shortfall(0.03, 1e-9) == pytest.approx(0.03)


def test_what_an_episode_is_worth_to_the_tail_falls_with_the_loss_by_the_formula():
    """24 bars are left after the loss, of deviation .01, and .04 may be lost: .1144."""
    spread = 0.01 * math.sqrt(24)
    ratio = -0.04 / spread
    share = 0.5 * math.erfc(-ratio / math.sqrt(2.0))
    density = math.exp(-(ratio**2) / 2.0) / math.sqrt(2.0 * math.pi)
    expected = -spread * (ratio * share + density) / 0.05
    worth = tails_chart._worth([0.0] * 16 + [-0.06] * 25)
    assert worth[16] == (16, pytest.approx(expected))
    assert worth[16][1] == pytest.approx(-0.11439, abs=1e-5)
    assert worth[15][1] == pytest.approx(-0.00849, abs=1e-5)
    assert worth[40] == (40, 0.0)  # nothing more can happen, and .06 is less than .1


def test_a_distribution_is_drawn_where_its_quantiles_lie():
    """Return -20 is the left end of the first panel, and -15 the middle of the worst tenth."""
    drawn = tails_chart.distributions([tail("a", [-20.0, -15.0], [0.0, 0.05])])
    left, right, top, bottom = 52, WIDTH - 14, 34, HEIGHT - 44
    assert circles(drawn)[0] == (left, bottom)  # the first panel shows every third
    assert circles(drawn)[1] == ((left + right) / 2 - (right - left) / 4, bottom)  # -20 of -25..-5
    assert circles(drawn)[2] == ((left + right) / 2, (top + bottom) / 2)


def test_only_first_seeds_of_the_normal_chain_are_drawn():
    drawn = tails_chart.distributions(
        [
            tail("other", [-10.0], [0.05], world="chain-skewed"),
            tail("a", [-10.0], [0.05]),
            tail("a", [-14.0], [0.05], seed=1),
        ]
    )
    assert "other" not in drawn
    assert len(circles(drawn)) == 3  # one in each panel and one in the legend


def test_rows_that_were_kept_without_their_values_take_no_place():
    bare = [tail(name, [], []) for name in "abcd"]
    whole = tail("e", [-20.0, -15.0], [0.0, 0.05])
    assert tails_chart.distributions([*bare, whole]) == tails_chart.distributions([whole])


def test_the_true_distribution_is_that_of_the_chain():
    """Half of all returns lie below 0: the line passes through the middle of the first panel."""
    drawn = tails_chart.distributions([tail("a", [-10.0], [0.05])])
    line = re.findall(r'<polyline points="([^"]+)"', drawn)[0].split()
    middle = ((52 + WIDTH - 14) / 2, (34 + HEIGHT - 44) / 2)
    assert tuple(float(x) for x in line[50].split(",")) == middle
    across, down = (float(x) for x in line[30].split(","))  # return -8 of -20..20
    share = 0.5 * math.erfc(8.0 * math.sqrt(1.0 - 0.99**2) / math.sqrt(2.0))
    assert across == pytest.approx(52 + 0.3 * (WIDTH - 66), abs=0.1)
    assert down == pytest.approx(HEIGHT - 44 - share * (HEIGHT - 78), abs=0.1)


def test_the_command_draws_both_pictures(tmp_path):
    command.tails(
        worlds="chain", cases="pictured", seeds=1, jobs=1, quick=True, out=None, chart=tmp_path
    )
    chart = (tmp_path / "tails.svg").read_text()
    for case in (bench.DEFAULT, bench.LAMBDA_RETURN, bench.CATEGORICAL):
        assert f">{case.name}</text>" in chart
    assert (tmp_path / "budget.svg").read_text() == tails_chart.budget()


@pytest.mark.refusal
def test_pictures_that_cannot_be_drawn_are_refused_before_the_work(tmp_path):
    with pytest.raises(typer.BadParameter) as refused:
        command.tails(chart=tmp_path / "no")
    assert refused.value.message == (
        f"the folder of the pictures must exist; found no {tmp_path / 'no'}. Make it."
    )
    with pytest.raises(typer.BadParameter) as refused:
        command.tails(worlds="garch-jump", chart=tmp_path)
    assert refused.value.message == (
        "`--worlds` must name chain for pictures; found garch-jump. Add it."
    )
