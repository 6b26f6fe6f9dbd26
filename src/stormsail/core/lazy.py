"""Public names of a package that are imported on first use (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(
    package: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, from its names by module.

    Modules are relative to the package. `__dir__` returns the public names, sorted.
    """
    modules = {name: module for module, own in names.items() for name in own}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get, lambda: sorted(modules)
