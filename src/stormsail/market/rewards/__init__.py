"""Rewards by name: log growth, others that come with the package, and the user's own."""

from stormsail.market.rewards import catalogue as _catalogue  # registers them
from stormsail.market.rewards.registry import (
    LOG_GROWTH,
    REWARDS,
    BoundReward,
    Reward,
    StepRecord,
    bound_reward,
    reward,
)

__all__ = [
    "LOG_GROWTH",
    "REWARDS",
    "BoundReward",
    "Reward",
    "StepRecord",
    "bound_reward",
    "reward",
]

del _catalogue
