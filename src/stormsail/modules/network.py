"""Encoder, memory, actor and critics as one network over whole sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stormsail.core.task import Actions, ImagePart
from stormsail.modules.actions import ActionHead, action_head
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.critics import Critic
from stormsail.modules.images import ObservationParts
from stormsail.modules.layers import Mlp, linear
from stormsail.modules.memory import Memory

ACTOR_GAIN = 0.01
"""Gain of the actor's last layer, so that the first policy is nearly uniform."""


@dataclass(frozen=True, eq=False)
class Output:
    """Outputs of a network for T rows of B environments."""

    actor: Tensor
    """Parameters of the action's distribution, [T, B, D]."""
    critic: Tensor
    """Predictions of all critics, normalised, [T, B, C, W]."""
    memory: Tensor
    """State after the last row, [B, L, P, H]; the critics' own layers follow the actor's."""


class Trunk(nn.Module):
    """Encoder, with convolutions for images, and memory."""

    def __init__(
        self,
        inputs: int,
        images: Sequence[ImagePart],
        config: NetworkConfig,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.parts = ObservationParts(inputs, images, generator)
        self.encoder = Mlp(
            self.parts.width,
            config.encoder_sizes,
            activation=config.activation,
            generator=generator,
            spread=1 if config.first_layer == "spread" else 0,
            unit_first=config.first_layer == "spread",
        )
        self.memory = Memory(
            self.encoder.width,
            kind=config.memory,
            width=config.lstm_hidden_size,
            layers=config.num_layers,
            learn_initial=config.learn_initial_state,
            generator=generator,
        )

    def forward(self, x: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [T, B, H] and the state after the last row."""
        features, after = self.memory(self.encoder(self.parts(x)), state, reset)
        return features, after


class Network(nn.Module):
    """A recurrent actor with one or more distributional critics.

    Args:
        observation_size: number of observed columns that are no pixels.
        actions: what the task takes.
        network: trunk and head layers.
        policy: how actions are drawn.
        critic: what is predicted.
        generator: source of all weights.
        images: whose pixels follow the other columns.
    """

    def __init__(
        self,
        observation_size: int,
        actions: Actions,
        *,
        network: NetworkConfig,
        policy: PolicyConfig,
        critic: CriticConfig,
        generator: torch.Generator,
        images: Sequence[ImagePart] = (),
    ) -> None:
        super().__init__()
        self.head: ActionHead = action_head(actions, policy)
        self.trunk = Trunk(observation_size, images, network, generator)
        self.critic_trunk = (
            Trunk(observation_size, images, network, generator)
            if network.enable_critic_lstm
            else None
        )
        width = self.trunk.memory.width
        activation = network.activation
        spread = len(network.head_sizes) if network.first_layer == "spread" else 0
        self.actor_body = Mlp(
            width, network.head_sizes, activation=activation, generator=generator, spread=spread
        )
        self.actor_last = linear(
            self.actor_body.width, self.head.width, gain=ACTOR_GAIN, generator=generator
        )
        self.critic = Critic(
            width,
            critic,
            sizes=network.head_sizes,
            activation=activation,
            generator=generator,
            spread=spread,
        )

    def forward(self, observation: Tensor, memory: Tensor, reset: Tensor) -> Output:
        """Return the outputs of every row.

        Args:
            observation: normalised, [T, B, F].
            memory: state before the first row, [B, L, P, H].
            reset: rows that start from the initial state, bool [T, B].
        """
        if self.critic_trunk is None:
            features, after = self.trunk(observation, memory, reset)
            critic_features = features
        else:
            own = self.trunk.memory.layers
            features, after = self.trunk(observation, memory[:, :own], reset)
            critic_features, other = self.critic_trunk(observation, memory[:, own:], reset)
            after = torch.cat((after, other), 1)
        actor = self.actor_last(self.actor_body(features))
        predicted = self.critic(critic_features)
        exact = self.actor_last.weight.dtype  # probabilities and losses need more than bfloat16
        return Output(actor.to(exact), predicted.to(exact), after)

    def critic_parameters(self) -> list[nn.Parameter]:
        """Return the weights that belong to the critics alone: heads, and their own trunk."""
        own = [] if self.critic_trunk is None else list(self.critic_trunk.parameters())
        return [*own, *self.critic.parameters()]

    def initial_memory(self, batch: int) -> Tensor:
        """Return the state at the start of an episode, [B, L, P, H]."""
        states = [self.trunk.memory.initial_state(batch)]
        if self.critic_trunk is not None:
            states.append(self.critic_trunk.memory.initial_state(batch))
        return torch.cat(states, 1)
