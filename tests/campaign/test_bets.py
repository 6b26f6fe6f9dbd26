"""Best means of bets over 64 bars, which take half a minute to solve."""

import pytest

from stormsail.bench.bets import bets_exact
from stormsail.bench.bets.bets_worlds import KNOWN

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize(
    ("name", "published", "solved"), [("bars", 40.6, 40.69226), ("warning", 93.4, 93.82217)]
)
def test_long_episodes_have_the_published_best_means_within_half_a_percent(name, published, solved):
    result = bets_exact.solve(KNOWN[name])
    assert result.mean == pytest.approx(published, rel=0.005)
    assert result.mean == pytest.approx(solved, rel=1e-6)
