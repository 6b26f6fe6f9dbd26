"""Configuration of an agent's network, policy and critics."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stormsail.core.config import Config

MLP = "mlp"
"""The encoder that comes with the package."""

MAX_WIDTH = 65_536
"""Largest layer width: a larger number is a mistake, or a file made to exhaust memory."""

Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class NetworkConfig(Config):
    """Encoder, memory and the layers in front of the heads."""

    encoder: Annotated[str, Field(max_length=100)] = MLP
    """What stands between observation and memory: `mlp`, fully connected layers, or an encoder of a
    plug-in."""

    encoder_parameters: dict[str, float] = Field(default_factory=dict)
    """Parameters of an encoder of a plug-in that differ from its defaults."""

    encoder_sizes: tuple[Width, ...] = (64,)
    """Widths of the layers between observation and memory, of the encoder `mlp`."""

    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Non-linearity of encoder and head layers."""

    memory: Literal["lstm", "gru", "none"] = "lstm"
    """Recurrent layers; `none` is for comparison."""

    lstm_hidden_size: Width = 64
    """Width H of the memory."""

    num_layers: Annotated[int, Field(ge=1, le=64)] = 1
    """Layers L of the memory."""

    learn_initial_state: bool = False
    """Learn the state at an episode's start, instead of zeros."""

    enable_critic_lstm: bool = False
    """Separate encoder and memory for the critics, instead of shared ones."""

    head_sizes: tuple[Width, ...] = (64,)
    """Widths of the layers between memory and outputs, separate for the actor and each critic."""

    first_layer: Literal["orthogonal", "spread"] | None = None
    """Weights at the start. `orthogonal`, and None, has zero biases everywhere; `spread` scales the
    first encoder layer so that each unit reads a variance of 1, and draws its biases and those of
    the heads' hidden layers from (-1, 1), so that units differ in where they bend. A run derives
    `spread`."""


class PolicyConfig(Config):
    """Action distribution."""

    distribution: Literal["auto", "categorical", "squashed_gaussian", "beta"] = "auto"
    """`auto` takes categorical for discrete actions and a squashed Gaussian for continuous ones."""

    std_min: Annotated[float, Field(gt=0.0)] = 0.2
    """Least standard deviation of the Gaussian before squashing."""

    std_max: Annotated[float, Field(gt=0.0)] = 1.5
    """Largest one."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.std_min < self.std_max:
            raise ValueError(
                f"`std_min` must be below `std_max`, not {self.std_min} and {self.std_max}"
            )
        return self


class CriticConfig(Config):
    """What the critics predict, and how several of them are combined."""

    kind: Literal["quantile", "categorical", "scalar"] = "quantile"
    """Return distribution by quantiles, return distribution on fixed atoms, or only the mean."""

    num_quantiles: Width = 32
    """N, the number of quantiles."""

    huber_kappa: Annotated[float, Field(ge=0.0)] = 0.02
    """Huber threshold of the quantile loss, in normalised units; 0 is the pinball loss."""

    levels: Literal["uniform", "tail"] | None = None
    """Levels of the quantiles: the middles of N equal cells, as with None, or of cells that are
    narrow in the lower tail, where a quarter of them shares the worst 5 % of the mass. A run
    derives `tail` where its other settings allow it."""

    monotone_quantiles: bool = False
    """Build quantiles that cannot cross."""

    num_atoms: Annotated[int, Field(ge=2, le=MAX_WIDTH)] = 51
    """K, the number of atoms of a categorical critic."""

    v_min: float = -10.0
    """Lowest atom at the start, in normalised units."""

    v_max: float = 10.0
    """Highest atom at the start."""

    v_range_ema_alpha: Annotated[float, Field(ge=0.0, le=1.0)] = 0.005
    """Moving-average weight with which the support follows the returns; 0 keeps it fixed."""

    use_twin_critics: bool = True
    """Two critics instead of one."""

    twin_value_mode: Literal["min", "mean"] = "min"
    """How the values of both critics are combined."""

    twin_dist_mode: Literal["argmin", "mixture", "elementwise_min"] = "argmin"
    """How the return distributions of both are combined, for risk."""

    learning_rate_factor: Annotated[float, Field(gt=0.0)] | None = None
    """Learning rate of the critics' heads, and of their own trunk where they have one, as a
    multiple of that of all other weights; `ppo.optimizer_lr_min` and `ppo.optimizer_lr_max` bound
    the rate before it is multiplied. A run derives 10 for quantiles and 5 for atoms, or as much
    as gives a rate of 0.01, and 1 for a mean."""

    head_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of an optimizer of its own for the critics' heads alone, after the epochs of an update,
    which then leave the heads as they are; with 0 the epochs train them. They learn from single
    returns drawn from the targets of the last `head_rollouts` rollouts, with gradients of one size
    at all levels: 128 are for tails of single states."""

    head_batch: Annotated[int, Field(ge=1)] = 64
    """Rows in one of these steps."""

    head_rollouts: Annotated[int, Field(ge=1)] = 16
    """Rollouts whose rows they are drawn from: a tail has few rows in one."""

    head_rate: Annotated[float, Field(gt=0.0)] = 3.0
    """Learning rate of these steps as a multiple of the heads' own rate, times the share of the
    first rate that is left, so that it falls with the square."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.v_min < self.v_max:
            raise ValueError(f"`v_min` must be below `v_max`, not {self.v_min} and {self.v_max}")
        if self.kind == "categorical" and self.twin_dist_mode == "elementwise_min":
            raise ValueError(
                "`twin_dist_mode` must be `argmin` or `mixture` for a categorical critic, not "
                "`elementwise_min`, which compares quantiles"
            )
        if self.levels == "tail" and self.twin_dist_mode == "mixture":
            raise ValueError(
                "`twin_dist_mode` must be `argmin` or `elementwise_min` for `levels` `tail`, not "
                "`mixture`, whose atoms would have other weights in every state"
            )
        return self

    @property
    def weighs_quantiles(self) -> bool:
        """Whether quantiles stand for unequal shares of the mass."""
        return self.kind == "quantile" and self.levels == "tail"

    @property
    def critics(self) -> int:
        """C, the number of critics."""
        return 2 if self.use_twin_critics else 1

    @property
    def width(self) -> int:
        """Numbers that one critic outputs."""
        return {"quantile": self.num_quantiles, "categorical": self.num_atoms, "scalar": 1}[
            self.kind
        ]
