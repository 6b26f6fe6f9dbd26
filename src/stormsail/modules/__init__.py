"""Networks with weights: encoder, memory, actor, critics, normalisers, and the agent."""

from stormsail.modules.agent import Agent, AgentSpec, Decision
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig

__all__ = ["Agent", "AgentSpec", "CriticConfig", "Decision", "NetworkConfig", "PolicyConfig"]
