"""What an agent sees of its account."""

import math

import pytest
import torch

from stormsail.core.errors import ShapeError
from stormsail.market.features import ACCOUNT_FEATURES, AccountTensors, account_features


def account(**changes):
    fields = {
        "weight": 0.5,
        "unrealised": -20.0,
        "equity": 80.0,
        "peak_equity": 160.0,
        "start_equity": 100.0,
        "bars_in_position": 32.0,
        "bars_left": 96.0,
    } | changes
    return AccountTensors(**{key: torch.tensor([value]).double() for key, value in fields.items()})


def test_the_columns_by_hand():
    actual = account_features(account(), episode_bars=128)
    expected = [[0.5, -0.25, 0.5, 0.25, math.log(0.8), 0.75]]
    torch.testing.assert_close(actual, torch.tensor(expected).double())
    assert actual.shape[-1] == len(ACCOUNT_FEATURES)


def test_a_lost_account_stays_finite():
    for equity in (0.0, -5.0):
        actual = account_features(account(equity=equity), episode_bars=128)
        assert actual.isfinite().all()
        assert actual[0, 4].item() == pytest.approx(math.log(1e-6))


def test_a_new_peak_is_no_drawdown():
    actual = account_features(account(equity=200.0), episode_bars=128)
    assert actual[0, 2].item() == 0.0


def test_counts_may_be_integers_and_the_dtype_is_the_weights():
    state = account()
    whole = state._replace(bars_left=state.bars_left.long())
    actual = account_features(
        AccountTensors(*(x.float() if x.is_floating_point() else x for x in whole)),
        episode_bars=128,
    )
    assert actual.dtype == torch.float32
    assert actual[0, 5].item() == 0.75


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads itself
def test_it_compiles_without_a_graph_break():
    compiled = torch.compile(account_features, fullgraph=True, backend="eager")
    actual = compiled(account(), episode_bars=128)
    torch._dynamo.reset()
    assert torch.equal(actual, account_features(account(), episode_bars=128))


@pytest.mark.refusal
def test_fields_of_another_shape_are_refused():
    state = account()
    with pytest.raises(ShapeError) as caught:
        account_features(state._replace(equity=torch.ones(2)), episode_bars=128)
    assert str(caught.value) == (
        "`weight` and `equity` of the account must have the same shape; "
        "found weight (1,) and equity (2,). Pass one entry for each account. [shape-mismatch]"
    )
