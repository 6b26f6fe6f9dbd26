"""What no file of the package may do, found in its syntax tree."""

import ast
from collections.abc import Iterator

# A dotted name bans itself and everything below it.
BANNED = {
    "pickle": "runs code on load",
    "_pickle": "runs code on load",
    "cloudpickle": "runs code on load",
    "dill": "runs code on load",
    "marshal": "runs code on load",
    "shelve": "runs code on load",
    "joblib": "runs code on load",
    "yaml": "runs code on load",
    "runpy": "runs code",
    "importlib": "imports what data names",
    "torch.load": "runs code on load",
    "torch.save": "writes what runs code on load",
    "torch.jit": "runs code on load",
    "torch.hub": "runs code on load",
    "torch.package": "runs code on load",
    "torch.serialization": "runs code on load",
    "numpy.load": "runs code on load",
    "numpy.fromregex": "parses what data names",
    "builtins.eval": "runs code",
    "builtins.exec": "runs code",
    "builtins.compile": "runs code",
    "builtins.__import__": "imports what data names",
    "time.time": "asks the machine for the time",
    "time.time_ns": "asks the machine for the time",
    "time.ctime": "asks the machine for the time",
    "time.monotonic": "asks the machine for the time",
    "time.monotonic_ns": "asks the machine for the time",
    "time.perf_counter": "asks the machine for the time",
    "time.perf_counter_ns": "asks the machine for the time",
    "time.process_time": "asks the machine for the time",
    "datetime.datetime.now": "asks the machine for the time",
    "datetime.datetime.utcnow": "asks the machine for the time",
    "datetime.datetime.today": "asks the machine for the time",
    "datetime.date.today": "asks the machine for the time",
    "numpy.datetime64": "writes times in words of its own",
    "numpy.datetime_as_string": "writes times in words of its own",
    "time.strftime": "writes times in words of its own",
    "random": "draws from global state",
    "secrets": "draws what no seed repeats",
    "uuid.uuid4": "draws what no seed repeats",
    "os.urandom": "draws what no seed repeats",
    "torch.manual_seed": "touches global state",
    "torch.seed": "touches global state",
    "torch.initial_seed": "touches global state",
    "torch.set_rng_state": "touches global state",
    "torch.random": "touches global state",
    "torch.cuda.manual_seed": "touches global state",
    "torch.cuda.manual_seed_all": "touches global state",
    "torch.cuda.seed": "touches global state",
    "torch.cuda.set_rng_state": "touches global state",
    "numpy.random": "draws from global state",
}

# Exceptions to the list: names of numpy's explicit generators, the one clock, and the stopwatch of
# the package that measures how fast the others are.
ALLOWED_NAMES = {"numpy.random.Generator", "numpy.random.PCG64", "numpy.random.SeedSequence"}
ALLOWED_FILES = {
    "core/clock.py": {"time.time_ns", "time.monotonic_ns", "numpy.datetime64"},
    # Plug-ins are code: the user's files, named by her on the command line, in a configuration that
    # she passes or in Python, never those that data, a model or saved settings name.
    "core/plugins.py": {"importlib"},
    # Jobs and their results between a driver and the workers that it has started itself, through
    # their pipes or Ray's own channels; nothing is ever read from a file or a stranger.
    "algorithms/population/engines/reports.py": {"pickle"},
    # Public names that are imported on first use (PEP 562), from a table in the package itself.
    "core/lazy.py": {"importlib.import_module"},
    # A token that a seed could repeat would be no token; nothing is trained or judged with it.
    "execution/operator/dashboard/token.py": {"secrets"},
}
ALLOWED_FOLDERS = {"bench": {"time.perf_counter", "time.process_time"}}

BUILTINS = {"eval", "exec", "compile", "__import__"}


def violations(source: str, file: str) -> list[str]:
    """Return a line for each banned thing in the source."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    folder = file.partition("/")[0]
    allowed = ALLOWED_NAMES | ALLOWED_FILES.get(file, set()) | ALLOWED_FOLDERS.get(folder, set())
    lines = {
        f"{file}:{line}: {name} {reason}"
        for line, name in _names(tree, aliases)
        for reason in [_reason(name, allowed)]
        if reason
    }
    return sorted(lines | set(_handlers(tree, file)))


def _reason(name: str, allowed: set[str]) -> str | None:
    parts = name.split(".")
    prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if prefixes & allowed:
        return None
    return next((BANNED[prefix] for prefix in sorted(prefixes) if prefix in BANNED), None)


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what each imported name stands for: `np` for numpy, `load` for torch.load."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                yield local, alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _names(tree: ast.AST, aliases: dict[str, str]) -> Iterator[tuple[int, str]]:
    # `np.random` inside `np.random.PCG64` is judged as a part of the whole name only.
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            name = _dotted(node, aliases)
            if name is not None:
                yield node.lineno, name


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Return the full name of an expression such as `np.random.seed`, if it begins at an import."""
    if isinstance(node, ast.Name):
        if node.id in BUILTINS and node.id not in aliases:
            return f"builtins.{node.id}"
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, aliases)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def _handlers(tree: ast.AST, file: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield f"{file}:{node.lineno}: bare except hides every error"
        elif _is_broad(node.type) and all(_is_nothing(line) for line in node.body):
            yield f"{file}:{node.lineno}: except that does nothing hides every error"


def _is_broad(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def _is_nothing(line: ast.stmt) -> bool:
    constant = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return isinstance(line, ast.Pass | ast.Continue) or constant
