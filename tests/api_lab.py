"""Tiny settings for the front door in Python: a control task, and a market of two features."""

from training_lab import SMALL, TASKS

MARKET = {
    **SMALL,
    "task.name": "market",
    "task.market.features": (
        {"name": "log_return", "parameters": {"horizon": 1}},
        {"name": "realised_volatility", "parameters": {"window": 24}},
    ),
    "task.market.episode_bars": 12,
    "task.market.levels": (-1.0, 0.0, 1.0),
}
CARTPOLE = {**SMALL, **TASKS["cartpole-lstm"]}
