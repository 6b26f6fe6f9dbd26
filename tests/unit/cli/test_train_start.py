"""What `train` says before the first update."""

import pytest

from stormsail.algorithms.config import TrainConfig
from stormsail.cli.learning.train import _show_compiling


@pytest.mark.parametrize(
    ("steps", "given", "said"),
    [
        (1_000_000, None, "1,000,000 steps: the update is compiled first, which takes about "
         "half a minute the first time, some seconds later (`compile_update`)\n"),
        (999_999, None, ""),
        (1_000_000, True, ""),  # who asked for it knows
        (1_000_000, False, ""),
    ],
)  # fmt: skip
def test_a_long_run_says_that_it_compiles_first_where_nobody_asked_for_it(
    steps, given, said, capsys
):
    changes = {"ppo.total_steps": steps} | ({} if given is None else {"compile_update": given})
    _show_compiling(TrainConfig().replace(**changes))
    assert capsys.readouterr().out == said
