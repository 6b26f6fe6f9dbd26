"""`bench.seeds`: the mean over seeds and its errors, by hand."""

import json
import math

import pytest

from stormsail.bench.seeds import NORMAL_95, Seeds
from stormsail.cli.bench.output import write_json


def test_the_errors_of_three_seeds_by_hand():
    """1, 2 and 6: mean 3, deviations -2, -1 and 3, so a variance of 14 / 2."""
    seeds = Seeds([1.0, 2.0, 6.0])
    assert seeds.mean == 3.0
    assert seeds.deviation == pytest.approx(math.sqrt(7.0))
    assert seeds.standard_error == pytest.approx(math.sqrt(7.0 / 3.0))
    assert seeds.half == pytest.approx(4.302653 * math.sqrt(7.0 / 3.0), rel=1e-6)  # t of 2


def test_a_single_seed_has_no_error_unless_one_is_known():
    alone = Seeds([2.0])
    assert alone.mean == 2.0
    assert all(math.isnan(error) for error in (alone.deviation, alone.standard_error, alone.half))
    known = Seeds([2.0], alone=0.5)
    assert (known.deviation, known.standard_error, known.half) == (0.5, 0.5, 0.5 * NORMAL_95)


@pytest.mark.parametrize(
    ("shown", "text"),
    [("deviation", "3.00 ± 2.65"), ("standard_error", "3.00 ± 1.53"), ("half", "3.00 ± 6.57")],
)
def test_the_error_that_is_shown_is_printed(shown, text):
    assert str(Seeds([1.0, 2.0, 6.0], shown=shown, spec=".2f")) == text


def test_a_file_holds_mean_error_and_values(tmp_path):
    out = tmp_path / "seeds.json"
    write_json(out, {"score": Seeds([1.0, 3.0], shown="standard_error")})
    assert json.loads(out.read_text()) == {
        "score": {"mean": 2.0, "error": pytest.approx(1.0), "values": [1.0, 3.0]}
    }
