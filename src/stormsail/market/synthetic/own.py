"""Worlds of plug-ins: a function that draws log returns becomes a synthetic world."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import create_model

from stormsail.core import plugins
from stormsail.core.arguments import wrong_type
from stormsail.core.errors import ArgumentError, ConfigError, DtypeError, StormsailError
from stormsail.market.synthetic.process import Path, Process, Streams, WorldConfig, WorldKind

Draw = Callable[..., object]
"""`(generator, bars, **parameters)` to log returns [bars], or to a `Path`."""

_BUILT_IN = ("ar1", "crash", "garch_jump", "noise", "oracle", "regime")

OWN_WORLDS = plugins.published(plugins.Registry[WorldKind]("world"))
"""Where `world` puts what it decorates."""


@dataclass(frozen=True)
class UnknownProcess(Process):
    """Process of a user's world, of which nothing is known but how it is drawn."""

    config: WorldConfig
    words: str

    measured = "log"

    @property
    def mean(self) -> float:
        """Not known."""
        return math.nan

    @property
    def variance(self) -> float:
        """Not known."""
        return math.nan

    @property
    def kurtosis(self) -> float:
        """Not known."""
        return math.nan

    def numbers(self) -> dict[str, float]:
        """Nothing is known."""
        return {}

    @property
    def statement(self) -> str:
        """First line of the function's docstring."""
        return self.words

    @property
    def answer(self) -> str:
        """Nothing is known."""
        return "none is known"


def world(*, name: str, volatility: float = 0.01) -> Callable[[Draw], Draw]:
    """Register a function that draws log returns as a synthetic world.

    The function gets a `numpy.random.Generator`, the number of bars, and its own keyword
    parameters, numbers with a default, which `task.data.world_parameters` sets. It returns the log
    returns of one symbol, close to close, float64 [bars]; it is called once for each symbol. All
    that it draws must come from the generator, one bar after the other, so that more bars only
    append. Highs, lows, volumes and funding are drawn around it as in every world.

    Args:
        name: unique, in lower case; `task.data.world` names it.
        volatility: typical size of a return, by which highs, lows and volume are drawn.

    Raises:
        ArgumentError: if the name is taken or badly formed, or it is no function.
        DtypeError: if a parameter has no number as its default.
    """

    def register(function: Draw) -> Draw:
        OWN_WORLDS.check(name, function)
        if name in _BUILT_IN:
            raise ArgumentError(
                "plugin-duplicate",
                wrong=f"the name `{name}` must belong to one world",
                found="that of the package under that name",
                remedy="Choose another name.",
            )
        own = _defaults(name, function)
        fields: dict[str, object] = {key: (float, value) for key, value in own.items()}
        config: type[WorldConfig] = create_model(  # type: ignore[call-overload]  # names are data
            f"{name}_config", __base__=WorldConfig, __module__=__name__, **fields
        )
        lines = (inspect.getdoc(function) or f"the plug-in world `{name}`").splitlines()
        kind = WorldKind(
            config,
            lambda settings: UnknownProcess(settings, lines[0]),
            lambda settings, streams, count: _drawn(
                name, function, settings, tuple(own), streams, count, volatility
            ),
            lines[0],
        )
        OWN_WORLDS.register(name, kind, defined=function)
        return function

    return register


def _defaults(name: str, function: Draw) -> dict[str, float]:
    defaults = {}
    try:
        signature = inspect.signature(function)
    except ValueError:  # some of what is written in C has none
        must = "a function whose parameters can be read"
        remedy = "Write `def` below the decorator."
        raise wrong_type(function, name=name, must=must, remedy=remedy) from None
    for parameter in list(signature.parameters.values())[2:]:
        value = parameter.default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DtypeError(
                wrong=f"the parameter `{parameter.name}` of the world `{name}` must have a number "
                "as its default",
                found="none" if value is parameter.empty else repr(value),
                remedy=f"Write for example `{parameter.name}: float = 0.5`.",
            )
        if parameter.name in WorldConfig.model_fields:
            raise ArgumentError(
                "plugin-duplicate",
                wrong=f"the parameter `{parameter.name}` of the world `{name}` must not be a "
                "setting of every world",
                found=f"`{parameter.name}`",
                remedy="Choose another name.",
            )
        defaults[parameter.name] = float(value)
    return defaults


def _drawn(
    name: str,
    function: Draw,
    settings: WorldConfig,
    own: tuple[str, ...],
    streams: Streams,
    count: int,
    volatility: float,
) -> Path:
    parameters = {key: getattr(settings, key) for key in own}
    try:
        drawn = function(streams("returns"), count, **parameters)
    except StormsailError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise _wrong(name, "must run", f"{type(error).__name__}: {error}") from error
    if isinstance(drawn, Path):
        return drawn
    if not isinstance(drawn, np.ndarray) or drawn.shape != (count,):
        form = f"the shape {drawn.shape}" if isinstance(drawn, np.ndarray) else type(drawn).__name__
        raise _wrong(name, f"must return an array of {count} log returns", form)
    if not np.issubdtype(drawn.dtype, np.floating) or not np.isfinite(drawn).all():
        raise _wrong(name, "must return finite numbers", f"{drawn.dtype} with NaN or infinity")
    return Path(drawn.astype(np.float64), np.full(count, volatility**2), volatility)


def _wrong(name: str, must: str, found: str) -> ConfigError:
    return ConfigError(
        "plugin-result",
        wrong=f"the world `{name}` {must}",
        found=found,
        remedy="Return an array of log returns, one for each bar, drawn from the generator.",
    )
