"""Thousands of markets as one batch of tensors."""

from stormsail.market.simulator.config import MarketConfig
from stormsail.market.simulator.records import Info, State
from stormsail.market.simulator.simulator import Simulator

__all__ = ["Info", "MarketConfig", "Simulator", "State"]
