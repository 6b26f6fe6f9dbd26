"""Every setting does something, and every misspelt one is refused with the right name."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from pydantic import BaseModel

from simulator_lab import SYMBOL, plain_scaler, simulator, wild_panel
from stormsail.core.errors import ConfigError
from stormsail.market import MarketConfig
from stormsail.market.features import FeatureSet

ENDED = 14


def _panel():
    """Return wild bars: the last symbol is dead from a row on, and the rates of one are unknown."""
    panel = wild_panel(21, rows=60)
    panel.volume[ENDED:, 2] = 0.0
    missing = torch.zeros(panel.shape, dtype=torch.int64)
    missing[::8, 1] = 1
    panel.funding[:, 1] = 0.0
    return replace(panel, settlements=missing.clone(), rates_missing=missing)


PANEL = _panel()
BATCH = 12
BASE = MarketConfig().replace(
    **{
        "episode_bars": 20,
        "action": "continuous",
        "weight_range": (-4.0, 4.0),
        "levels": (-4.0, 0.0, 2.0, 4.0),
        "limits.max_leverage": 5.0,
        "features": [{"name": "log_return"}],
        "costs.impact_window": 3,
        "margin.maintenance": 0.05,
        "funding_missing": "zero",
    }
)
LEVELS = {"action": "levels"}
FAULTS = {"degrade.delay_prob": 0.5}

# Setting: what changes in it, and what must hold beside it for the change to matter.
TABLE = {
    "episode_bars": (21, {}),
    "initial_equity": (20_000.0, {}),
    "action": ("levels", {}),
    "levels": ((-4.0, 0.0, 1.0, 4.0), LEVELS),
    "weight_range": ((-3.0, 4.0), {}),
    "min_rebalance": (0.5, {}),
    "funding": (False, {}),
    "funding_missing": (0.01, {}),
    "trade_without_volume": (True, {"costs.impact": 0.0}),
    "delisting.silent_days": (1.0, {}),
    "delisting.loss": (0.3, {"delisting.silent_days": 1.0}),
    "ruin_penalty": (1.0, {"stops.equity_floor": 0.9}),
    "reward": ("drawdown_growth", {}),
    "reward_parameters": ({"penalty": 2.0}, {"reward": "drawdown_growth"}),
    "reward_clip": (0.01, {}),
    "costs.taker_fee": (0.001, {}),
    "costs.half_spread": (0.0004, {}),
    "costs.impact": (0.02, {}),
    "costs.impact_window": (4, {}),
    "margin.maintenance": (0.19, {}),
    "margin.liquidation_fee": (0.02, {"margin.maintenance": 0.19}),
    "filters.lot": (0.5, {}),
    "filters.tick": (0.5, {}),
    "filters.min_notional": (5_000.0, {}),
    "symbol_filters": ({SYMBOL: {"lot": 1.0}}, {}),
    "instruments": ({SYMBOL: {"taker_fee": 0.001}}, {}),
    "limits.max_position": (20_000.0, {}),
    "limits.max_leverage": (4.0, {}),
    "limits.max_turnover": (5.0, {}),
    "limits.max_drawdown": (0.1, {}),
    "limits.max_daily_loss": (0.05, {}),
    "limits.min_equity": (9_500.0, {}),
    "stops.equity_floor": (0.9, {}),
    "stops.drawdown": (0.2, {}),
    "no_trade.daily": (("03:00-06:00",), {}),
    "no_trade.ranges": ((("2021-01-04T08:00:00Z", "2021-01-04T12:00:00Z"),), {}),
    "no_trade.around_funding_minutes": (60, {}),
    "no_trade.drop_samples": (True, {}),
    "randomise.taker_fee": ((0.5, 0.5), {}),
    "randomise.half_spread": ((2.0, 2.0), {}),
    "randomise.impact": ((0.0, 2.0), {}),
    "degrade.stale_prob": (0.5, {}),
    "degrade.drop_prob": (0.5, {}),
    "degrade.delay_prob": (0.5, {}),
    "degrade.max_delay_bars": (3, FAULTS),
    "features": ([{"name": "log_return", "parameters": {"horizon": 2}}], {}),
}


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Return the dotted name of every setting that is no section."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def trace(config: MarketConfig) -> str:
    """Return a digest of everything that a fixed stream of decisions leads to."""
    features = FeatureSet(config.features, interval=PANEL.interval)
    sim = simulator(PANEL, config, batch=BATCH, features=features, scaler=plain_scaler(features))
    generator = torch.Generator().manual_seed(3)
    state, observation = sim.reset(generator)
    # Placed anew where no costs are drawn, so that starts do not depend on how much is drawn.
    first, _ = sim.place(torch.arange(BATCH) % 3, torch.arange(BATCH) + 2)
    state = first._replace(fee=state.fee, half_spread=state.half_spread, impact=state.impact)
    digest = hashlib.sha256(observation[:, -6:].numpy().tobytes())
    choice = torch.Generator().manual_seed(4)
    for index in range(30):
        asked = 8.0 * torch.rand(BATCH, generator=choice, dtype=torch.float64) - 4.0
        kept = torch.rand(BATCH, generator=choice) < 0.3
        if config.action == "levels":
            asked = asked.abs().long()
        else:
            asked[kept] = torch.nan  # no number, so the position drifts
        state, step = sim.transition(state, asked, sim.draw(generator))
        ledger = [value for value in step.info if value.ndim == 1]
        shown = [step.observation, step.reward, step.terminated, step.truncated]
        for tensor in (*ledger, *shown):
            digest.update(tensor.numpy().tobytes())
        if index == 18:
            break  # before the first new start
    return digest.hexdigest()


def test_the_table_names_every_setting():
    assert set(TABLE) == set(leaves(MarketConfig))


@pytest.mark.spec("C4", "R19", "M41")
@pytest.mark.parametrize("name", TABLE)
def test_a_setting_is_live(name):
    value, beside = TABLE[name]
    base = BASE.replace(**beside)
    changed = base.replace(**{name: value})
    assert trace(base) == trace(base)
    assert trace(changed) != trace(base)


def nested(name: str, value: object) -> dict[str, object]:
    *sections, last = name.split(".")
    data: dict[str, object] = {last: value}
    for section in reversed(sections):
        data = {section: data}
    return data


def typos(word: str) -> Iterator[str]:
    """Return words one slip away: a letter lost, doubled, replaced or swapped with the next."""
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]
        yield word[:at] + word[at] + word[at:]
        yield word[:at] + ("x" if word[at] != "x" else "y") + word[at + 1 :]
        if at + 1 < len(word) and word[at] != word[at + 1]:
            yield word[:at] + word[at + 1] + word[at] + word[at + 2 :]


@pytest.mark.spec("C4", "R19")
@pytest.mark.refusal
@pytest.mark.parametrize("name", TABLE)
def test_every_slip_of_the_pen_is_refused_with_the_right_name(name):
    *sections, last = name.split(".")
    names = set(leaves(MarketConfig)) | {"no_trade", "stops", "costs"}
    for wrong in set(typos(last)) - {last, ""}:
        path = ".".join((*sections, wrong))
        if path in names:
            continue
        with pytest.raises(ConfigError) as caught:
            MarketConfig.from_mapping(nested(path, 1))
        assert f"`{path}` must be the name of a setting" in str(caught.value)
        assert f"Did you mean `{name}`?" in str(caught.value), wrong


def test_a_market_survives_its_own_toml():
    text = BASE.replace(**{"no_trade.ranges": TABLE["no_trade.ranges"][0]}).to_toml()
    assert "2021-01-04T08:00:00" in text
