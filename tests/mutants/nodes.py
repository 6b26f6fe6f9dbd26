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


def loop(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the loop."""
    return integration("execution_loop", *names)


def kills(*names: str) -> tuple[str, ...]:
    """Return node ids of tests in which traders die."""
    return tuple(f"tests/fault/test_execution_kills.py::{name}" for name in names)


def outages(*names: str) -> tuple[str, ...]:
    """Return node ids of tests in which something fails for long."""
    return integration("execution_outages", *names)


def close(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of what is asked between a close and its orders."""
    return integration("close_questions", *names)


def perils(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of what costs money at a real exchange."""
    return integration("execution_perils", *names)


def gate(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of the order gate."""
    return unit("order_gate", *names, part="execution")
