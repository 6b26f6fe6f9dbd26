"""Features of an agent's own account, for the simulator and for live trading."""

from typing import NamedTuple

import torch
from torch import Tensor

from stormsail.core.errors import ShapeError

LEAST_EQUITY = 1e-6
"""Share of the reference below which equity counts as gone; keeps the logarithm finite."""

ACCOUNT_FEATURES = (
    "position",
    "unrealised",
    "drawdown",
    "time_in_position",
    "log_equity",
    "time_left",
)
"""Columns of `account_features`, in order."""


class AccountTensors(NamedTuple):
    """State of each account, all of one shape [*batch]."""

    weight: Tensor  # position as a signed share of equity
    unrealised: Tensor  # result of the open position, in quote currency
    equity: Tensor  # in quote currency
    peak_equity: Tensor  # highest equity of the episode
    start_equity: Tensor  # equity at the episode's start
    bars_in_position: Tensor  # since the position was opened or turned; 0 when flat
    bars_left: Tensor  # until the episode is truncated


def account_features(account: AccountTensors, *, episode_bars: int) -> Tensor:
    r"""Return the account's columns, [*batch, 6], in the order of `ACCOUNT_FEATURES`.

    Position w; unrealised result over equity; drawdown 1 - E / peak; bars in position over the
    episode's length; log(E / E_0), what the episode has earned so far, which the risk budget must
    be able to see; bars left over the episode's length. Ratios and logarithms only. Equity counts
    as at least 1e-6 of its reference.

    Args:
        account: state of each account.
        episode_bars: length of an episode in bars, at least 1. Outside training the training
            length stays, and an episode is a fixed horizon.

    Raises:
        ShapeError: if a field is shaped unlike the weight.
    """
    for name, tensor in account._asdict().items():
        if tensor.shape != account.weight.shape:
            raise ShapeError(
                wrong=f"`weight` and `{name}` of the account must have the same shape",
                found=f"weight {tuple(account.weight.shape)} and {name} {tuple(tensor.shape)}",
                remedy="Pass one entry for each account.",
            )
    dtype = account.weight.dtype
    floor = account.start_equity * LEAST_EQUITY
    equity = torch.maximum(account.equity, floor)
    columns = (
        account.weight,
        account.unrealised / equity,
        1.0 - equity / torch.maximum(account.peak_equity, equity),
        account.bars_in_position.to(dtype) / episode_bars,
        (equity / account.start_equity).log(),
        account.bars_left.to(dtype) / episode_bars,
    )
    return torch.stack([column.to(dtype) for column in columns], -1)
