"""Networks with weights: encoder, memory, actor, critics, normalisers, and the agent."""

from stormsail.modules.agent import Agent, AgentSpec, Decision
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.layers import Mlp, linear

__all__ = [
    "Agent",
    "AgentSpec",
    "CriticConfig",
    "Decision",
    "Mlp",
    "NetworkConfig",
    "PolicyConfig",
    "linear",
]
