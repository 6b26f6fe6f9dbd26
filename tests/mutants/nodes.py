"""Names of tests, as pytest wants them."""


def unit(module: str, *names: str, part: str = "functional") -> tuple[str, ...]:
    """Return node ids of unit tests of one module of a part of the package.

    A module may stand in a room of its part: `stats/sharpe`.
    """
    room, _, last = module.rpartition("/")
    folder = f"{part}/{room}" if room else part
    return tuple(f"tests/unit/{folder}/test_{last}.py::{name}" for name in names)


def law(module: str, *names: str) -> tuple[str, ...]:
    """Return node ids of property tests of one module."""
    return tuple(f"tests/property/test_{module}.py::{name}" for name in names)


def integration(module: str, *names: str) -> tuple[str, ...]:
    """Return node ids of tests of several parts together."""
    return tuple(f"tests/integration/test_{module}.py::{name}" for name in names)
