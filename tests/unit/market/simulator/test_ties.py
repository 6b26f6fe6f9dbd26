"""Ties and rounding: where one more bit would change what an account does."""

import pytest
import torch

from simulator_lab import market, play, settings, steady
from stormsail.functional.market import fills
from stormsail.functional.risk_gate import Account, Limits, Reason, risk_gate


@pytest.mark.parametrize("rule", ["max_drawdown", "max_daily_loss"])
@pytest.mark.parametrize(("equity", "limit"), [(90.0, 0.1), (70.0, 0.3), (40.0, 0.6)])
def test_a_fall_by_exactly_the_limit_trips_it_whatever_rounding_makes_of_it(rule, equity, limit):
    # 1 - 90 / 100 is less than 0.1 in floating point.
    numbers = (0.5, equity, 100.0, 100.0, 0.0)
    account = Account(*(torch.tensor(x, dtype=torch.float64) for x in numbers))
    off = {name: float("inf") for name in Limits._fields} | {"min_equity": 0.0}
    allowed, reason = risk_gate(
        torch.tensor(0.75, dtype=torch.float64), account, Limits(**(off | {rule: limit}))
    )
    wanted = Reason.DRAWDOWN if rule == "max_drawdown" else Reason.DAILY_LOSS
    assert (allowed.item(), reason.item()) == (0.5, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_asking_for_the_held_weight_trades_no_rounding(dtype):
    draw = torch.Generator().manual_seed(0)
    quantity, price = (10.0 ** (4.0 * torch.rand(1000, generator=draw) - 2.0) for _ in range(2))
    quantity, price = quantity.to(dtype), price.to(dtype)
    equity = quantity * price * (0.5 + torch.rand(1000, generator=draw).to(dtype))
    nothing = torch.zeros_like(price)
    terms = fills.Terms(nothing, nothing, nothing, nothing, nothing)
    weight = quantity * price / equity
    assert (weight * equity != quantity * price).any(), "some must round"
    order = fills.order_quantity(weight, equity, quantity, price, nothing, terms)
    assert torch.equal(order, nothing)


def test_an_order_that_is_not_sent_uses_no_turnover():
    panel = market(steady([100.0] * 6), closed=[2])
    _, states, rows = play(panel, settings(episode_bars=4), [0.5, 1.0])
    assert [row["blocked"] for row in rows] == [False, True]
    assert [row["turnover"] for row in rows] == [0.5, 0.0]
    assert [state.turnover.item() for state in states] == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("percent", range(5, 100, 5))
def test_a_fall_by_exactly_the_stop_ends_an_episode_at_every_price(percent, dtype):
    low = 37.1 * (100 - percent) / 100
    panel = market(steady([37.1, 37.1, low, low, low]))
    config = settings(episode_bars=3, **{"stops.drawdown": percent / 100})
    rows = play(panel, config, [1.0, 1.0], dtype=dtype)[2]
    assert [row["terminated"] for row in rows] == [False, True]
