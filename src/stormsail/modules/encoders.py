"""Encoders by name: fully connected layers, and those that plug-ins register."""

import inspect
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from stormsail.core import plugins
from stormsail.core.errors import ArgumentError, ChoiceError, ConfigError, StormsailError, nearest
from stormsail.modules.config import MAX_WIDTH, MLP, NetworkConfig
from stormsail.modules.layers import Mlp

Factory = Callable[..., nn.Module]
"""`(inputs, *, generator, **parameters)` to a module from [*b, inputs] to [*b, width]."""

NETWORKS = plugins.published(plugins.Registry[Factory]("network"))
"""Where `network` puts what it decorates."""


def network(*, name: str) -> Callable[[Factory], Factory]:
    """Register an encoder: what stands between observation and memory.

    The factory, a function or a class, is called as `factory(inputs, generator=..., **parameters)`
    with the number of observed columns, the source of all weights and its own keyword parameters,
    numbers. It returns a `torch.nn.Module` that maps [*b, inputs] to [*b, width] and has `width`, a
    whole number. Each row of *b must be encoded by itself, since rows are times and environments.

    Args:
        name: unique, in lower case; `network.encoder` names it.

    Raises:
        ArgumentError: if the name is taken or badly formed.
    """

    def register(factory: Factory) -> Factory:
        NETWORKS.check(name, factory)
        if name == MLP:
            raise ArgumentError(
                "plugin-duplicate",
                wrong=f"the name `{MLP}` must belong to one network",
                found="that of the package under that name",
                remedy="Choose another name.",
            )
        NETWORKS.register(name, factory, defined=factory)
        return factory

    return register


def build_encoder(
    inputs: int, config: NetworkConfig, generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Return the encoder of a configuration and the width of what it returns.

    Raises:
        ChoiceError: if there is no such encoder, or it has no such parameter.
        ConfigError: if a plug-in's encoder raises, has no width, returns another shape, or has
            weights that are not drawn from the generator; or if parameters are given to `mlp`.
    """
    if config.encoder == MLP:
        if config.encoder_parameters:
            raise ConfigError(
                "config-value",
                wrong=f"`network.encoder_parameters` must be left out with the encoder `{MLP}`",
                found=", ".join(f"`{name}`" for name in config.encoder_parameters),
                remedy="Use `network.encoder_sizes`, or name another encoder.",
            )
        layers = Mlp(
            inputs,
            config.encoder_sizes,
            activation=config.activation,
            generator=generator,
            spread=1 if config.first_layer == "spread" else 0,
            unit_first=config.first_layer == "spread",
        )
        return layers, layers.width
    return _own(inputs, config.encoder, config.encoder_parameters, generator)


def _own(
    inputs: int, name: str, parameters: Mapping[str, float], generator: torch.Generator
) -> tuple[nn.Module, int]:
    factory = NETWORKS.get(name)
    _check_parameters(factory, name, parameters)
    try:
        again = torch.Generator().set_state(generator.get_state())
        encoder = factory(inputs, generator=generator, **parameters)
        width = _width(encoder, name)
        _check_shape(encoder, name, inputs, width)
        _check_weights(encoder, name, factory(inputs, generator=again, **parameters))
    except StormsailError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise _wrong(name, "must be built and run", f"{type(error).__name__}: {error}") from error
    return encoder, width


def _check_parameters(factory: Factory, name: str, parameters: Mapping[str, float]) -> None:
    known = [
        parameter.name
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "generator"
    ]
    for given in parameters:
        if given not in known:
            near = nearest(given, known)
            raise ChoiceError(
                wrong=f"`network.encoder_parameters` of `{name}` must be among: "
                + (", ".join(f"`{parameter}`" for parameter in known) or "none"),
                found=f"`{given}`",
                remedy=f"Did you mean `{near}`?" if near else "Choose one of those names.",
            )


def _width(encoder: object, name: str) -> int:
    width = getattr(encoder, "width", None)
    if not isinstance(encoder, nn.Module):
        raise _wrong(name, "must be a `torch.nn.Module`", f"a {type(encoder).__name__}")
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= MAX_WIDTH:
        raise _wrong(name, f"must have `width`, a whole number from 1 to {MAX_WIDTH}", repr(width))
    return width


def _check_shape(encoder: nn.Module, name: str, inputs: int, width: int) -> None:
    """Refuse another shape, and rows that are not encoded by themselves."""
    was_training = encoder.training
    encoder.eval()
    with torch.no_grad():
        rows = torch.linspace(-1.0, 1.0, 6 * inputs).reshape(3, 2, inputs)
        whole = encoder(rows)
        if not isinstance(whole, Tensor) or tuple(whole.shape) != (3, 2, width):
            shape = tuple(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__
            raise _wrong(name, f"must map {tuple(rows.shape)} to {(3, 2, width)}", str(shape))
        if whole.device.type != "meta":
            alone = encoder(rows[1:2, 1:2])
            if not torch.allclose(whole[1:2, 1:2], alone, rtol=1e-3, atol=1e-4):
                raise _wrong(name, "must encode each row by itself", "other numbers in a batch")
            if not math.isfinite(float(whole.abs().sum())):
                raise _wrong(name, "must return finite numbers", "NaN or infinity")
    encoder.train(was_training)


def _check_weights(encoder: nn.Module, name: str, again: nn.Module) -> None:
    """Refuse weights that come from anywhere but the generator: a seed would not repeat them."""
    weights, repeated = encoder.state_dict(), again.state_dict()
    if set(weights) != set(repeated) or any(
        weights[key].device.type != "meta" and not torch.equal(weights[key], repeated[key])
        for key in weights
    ):
        raise _wrong(
            name,
            "must draw its weights from `generator` alone",
            "other weights for the same state of it; `stormsail.modules.linear` draws from it",
        )


def _wrong(name: str, must: str, found: str) -> ConfigError:
    return ConfigError(
        "plugin-result",
        wrong=f"the network `{name}` {must}",
        found=found,
        remedy="Return a module with `width` from [*b, inputs] to [*b, width], its weights drawn "
        "from `generator`.",
    )
