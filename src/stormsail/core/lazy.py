"""Public names of a package that are imported on first use (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(
    package: str, names: Mapping[str, tuple[str, ...]], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, from its names by module.

    Modules are relative to the package. `__dir__` returns the public names, sorted.

    Args:
        package: its name.
        names: public names by the module that holds them.
        modules: modules that are public names themselves.
    """
    owners = {name: module for module, own in names.items() for name in own}

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{owners[name]}"), name)

    return get, lambda: sorted((*owners, *modules))
