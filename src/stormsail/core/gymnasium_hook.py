"""Registration of `stormsail/Market-v0` whenever Gymnasium is imported, before or after us.

`import stormsail.market` must not load Gymnasium, which few of its users need, and yet
`gymnasium.make` must know the name after both were imported, in whichever order.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_GYMNASIUM = "gymnasium"


def register_with_gymnasium() -> None:
    """Register the market now if Gymnasium is imported already, else right after its import."""
    if _GYMNASIUM in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport:
    """Finder that finds Gymnasium as the others do and registers the market once it is loaded.

    It stays until the load: a mere `importlib.util.find_spec("gymnasium")` loads nothing.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:  # noqa: ANN401 - a module's spec, whose class only importlib names
        if name != _GYMNASIUM:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (
            finder.find_spec(name, path, target)
            for finder in others
            if hasattr(finder, "find_spec")
        )
        spec: Any = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register()

            spec.loader.exec_module = load_and_register
        return spec


def _register() -> None:
    import stormsail.core.gymnasium_plugin  # noqa: F401 - importing it registers
