"""Thousands of markets as one batch of tensors."""

from stormsail.market.simulator.account import State
from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.info import Info
from stormsail.market.simulator.simulator import Simulator

__all__ = ["Info", "MarketConfig", "Simulator", "State"]
