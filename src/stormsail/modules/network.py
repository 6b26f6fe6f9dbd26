"""Encoder, memory, actor and critics as one network over whole sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stormsail.core.task import Actions, ImagePart
from stormsail.functional.kernels.layers.lstm_rows import LstmRows
from stormsail.modules.actions import ActionHead, action_head
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.critics import Critic
from stormsail.modules.encoders import build_encoder
from stormsail.modules.images import ObservationParts
from stormsail.modules.layers import Mlp, beside, last_layer, linear, side_by_side
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
    features: Tensor
    """Output of the actor's memory, [T, B, H]."""


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
        self.encoder, width = build_encoder(self.parts.width, config, generator)
        self.memory = Memory(
            width,
            kind=config.memory,
            width=config.lstm_hidden_size,
            layers=config.num_layers,
            learn_initial=config.learn_initial_state,
            generator=generator,
        )

    def forward(
        self, x: Tensor, state: Tensor, reset: Tensor, rows: LstmRows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return features [T, B, H] and the state after the last row; `rows` as of a `Memory`."""
        features, after = self.memory(self.encoder(self.parts(x)), state, reset, rows)
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
        after_memory: indices of observed columns that also go to the actor past encoder and memory.
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
        after_memory: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.after_memory = tuple(after_memory)
        self.head: ActionHead = action_head(actions, policy)
        grid = self.head.grid()
        self.register_buffer("grid", torch.empty(0) if grid is None else grid, persistent=False)
        self.grid: Tensor
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
            width + len(self.after_memory),
            network.head_sizes,
            activation=activation,
            generator=generator,
            spread=spread,
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
        trunks, after = self.remembered(observation, memory, reset)
        parameters, predicted = self.heads(observation, trunks)
        return Output(parameters, predicted, after, trunks[0])

    def remembered(
        self, observation: Tensor, memory: Tensor, reset: Tensor, rows: LstmRows | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return what each memory passes on, [T, B, H], the actor's first, and the state after it.

        The arguments are those of `forward`, and `rows` that of a `Memory`.
        """
        features, after = self.features(observation, memory, reset, rows)
        if self.critic_trunk is None:
            return (features,), after
        own = self.trunk.memory.layers
        others, other = self.critic_trunk(observation, memory[:, own:], reset, rows)
        return (features, others), torch.cat((after, other), 1)

    def heads(self, observation: Tensor, trunks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the action's parameters and the predictions of all critics, from `remembered`."""
        kind = self.actor_last.weight.dtype
        if len(trunks) == 1 and not self.after_memory:
            own = [(self.actor_body, self.actor_last)]
            together = side_by_side(trunks[0], [own, self.critic.pairs()])
            if together is not None:
                actor, critics = together
                return actor[..., 0, :], self.critic.completed(critics)
        # gradients of the features are summed in this order: another one gives other last bits
        parameters = self.actor(trunks[0], self.account(observation))
        predicted = self.critic(trunks[-1])
        return parameters, predicted.to(kind)

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the weights behind the memories."""
        parts = (self.actor_body, self.actor_last, self.critic)
        return [parameter for part in parts for parameter in part.parameters()]

    def features(
        self, observation: Tensor, memory: Tensor, reset: Tensor, rows: LstmRows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the memory passes to the actor, [T, B, H], and its state after the last row.

        The arguments are those of `forward`, and `rows` that of a `Memory`. Critics with a memory
        of their own have other features; the state is that of the actor's layers alone.
        """
        if self.critic_trunk is not None:
            memory = memory[:, : self.trunk.memory.layers]
        features, after = self.trunk(observation, memory, reset, rows)
        return features, after

    def critic_features(self, observation: Tensor, memory: Tensor, reset: Tensor) -> Tensor:
        """Return what the memory passes to the critics, [T, B, H]; the arguments of `forward`."""
        if self.critic_trunk is None:
            return self.features(observation, memory, reset)[0]
        own = self.trunk.memory.layers
        features: Tensor = self.critic_trunk(observation, memory[:, own:], reset)[0]
        return features

    def account(self, observation: Tensor) -> Tensor:
        """Return the columns `after_memory` of a normalised observation, [..., P]."""
        if not self.after_memory:
            return observation[..., :0]
        # slices: an index would have to be copied to the device
        return torch.cat([observation[..., k : k + 1] for k in self.after_memory], -1)

    def actor(self, features: Tensor, account: Tensor) -> Tensor:
        """Return the parameters of the action's distribution, [..., D].

        Args:
            features: of `features`, [..., H].
            account: the columns `after_memory` in the same rows, normalised as the network sees
                them, [..., P]. Others than the observed ones give the policy of an account that did
                something else in the last step: what the memory holds is left as it is.
        """
        if self.after_memory:  # in one type: a product would round the account all the same
            first = self.actor_body.squashed if self.actor_body.layers else self.actor_last
            features = beside(first, features, account.to(features.dtype))
        parameters = last_layer(self.actor_last, self.actor_body(features))
        # probabilities and losses need more than bfloat16
        return parameters.to(self.actor_last.weight.dtype)

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
