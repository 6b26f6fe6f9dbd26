"""No file of the package runs code from data, asks for the time, or draws from global state."""

from pathlib import Path

import pytest

import stormsail
from core.bans import violations

SOURCE = Path(stormsail.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def test_the_package_does_nothing_that_is_banned():
    lines = []
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        lines += violations(path.read_text(encoding="utf-8"), name)
    assert not lines, "\n".join(lines)


def test_all_layers_are_looked_at():
    folders = {path.relative_to(SOURCE).parts[0] for path in FILES if path.parent != SOURCE}
    assert {"core", "functional", "modules", "optim", "market", "algorithms", "cli"} <= folders


PLANTED = {
    "import pickle": "pickle runs code on load",
    "import pickle as p\np.loads(b'')": "pickle.loads runs code on load",
    "from pickle import loads": "pickle.loads runs code on load",
    "import multiprocessing, pickle": "pickle runs code on load",
    "import marshal": "marshal runs code on load",
    "import shelve": "shelve runs code on load",
    "import joblib": "joblib runs code on load",
    "import dill": "dill runs code on load",
    "import cloudpickle": "cloudpickle runs code on load",
    "import yaml\nyaml.load('')": "yaml.load runs code on load",
    "import torch\ntorch.load('x')": "torch.load runs code on load",
    "import torch as t\nt.load('x', weights_only=True)": "torch.load runs code on load",
    "from torch import load": "torch.load runs code on load",
    "from torch import load as read\nread('x')": "torch.load runs code on load",
    "import torch\nread = torch.load": "torch.load runs code on load",
    "import torch\ntorch.save({}, 'x')": "torch.save writes what runs code on load",
    "import torch\ntorch.jit.load('x')": "torch.jit.load runs code on load",
    "import torch\ntorch.hub.load('x', 'y')": "torch.hub.load runs code on load",
    "import numpy as np\nnp.load('x')": "numpy.load runs code on load",
    "import numpy\nnumpy.load('x')": "numpy.load runs code on load",
    "from numpy import load": "numpy.load runs code on load",
    "eval('1')": "builtins.eval runs code",
    "exec('1')": "builtins.exec runs code",
    "run = eval": "builtins.eval runs code",
    "compile('1', '', 'eval')": "builtins.compile runs code",
    "__import__('os')": "builtins.__import__ imports what data names",
    "import importlib\nimportlib.import_module('x')": "importlib imports what data names",
    "import runpy": "runpy runs code",
    "import time\ntime.time()": "time.time asks the machine for the time",
    "from time import time\ntime()": "time.time asks the machine for the time",
    "import time\ntime.time_ns()": "time.time_ns asks the machine for the time",
    "import time\ntime.monotonic_ns()": "time.monotonic_ns asks the machine for the time",
    "from time import monotonic": "time.monotonic asks the machine for the time",
    "import time\ntime.perf_counter()": "time.perf_counter asks the machine for the time",
    "import time\ntime.perf_counter_ns()": "time.perf_counter_ns asks the machine for the time",
    "import time\ntime.process_time()": "time.process_time asks the machine for the time",
    "import datetime\ndatetime.datetime.now()": (
        "datetime.datetime.now asks the machine for the time"
    ),
    "from datetime import datetime\ndatetime.now()": (
        "datetime.datetime.now asks the machine for the time"
    ),
    "from datetime import datetime as dt\ndt.utcnow()": (
        "datetime.datetime.utcnow asks the machine for the time"
    ),
    "from datetime import date\ndate.today()": "datetime.date.today asks the machine for the time",
    "import torch\ntorch.manual_seed(0)": "torch.manual_seed touches global state",
    "import torch\ntorch.random.manual_seed(0)": "torch.random.manual_seed touches global state",
    "import torch\ntorch.cuda.manual_seed_all(0)": (
        "torch.cuda.manual_seed_all touches global state"
    ),
    "import numpy as np\nnp.random.seed(0)": "numpy.random.seed draws from global state",
    "import numpy as np\nnp.random.normal()": "numpy.random.normal draws from global state",
    "import numpy as np\nnp.random.default_rng()": (
        "numpy.random.default_rng draws from global state"
    ),
    "from numpy.random import rand": "numpy.random.rand draws from global state",
    "import random\nrandom.random()": "random.random draws from global state",
    "from random import choice": "random.choice draws from global state",
    "import uuid\nuuid.uuid4()": "uuid.uuid4 draws what no seed repeats",
    "try:\n    f()\nexcept:\n    raise": "bare except hides every error",
    "try:\n    f()\nexcept Exception:\n    pass": "except that does nothing hides every error",
    "try:\n    f()\nexcept BaseException:\n    ...": "except that does nothing hides every error",
    "for x in y:\n    try:\n        f()\n    except (ValueError, Exception):\n        continue": (
        "except that does nothing hides every error"
    ),
}


def test_what_is_planted_is_found():
    missed = []
    for source, expected in PLANTED.items():
        lines = violations(source, "planted.py")
        if not any(line.endswith(f": {expected}") for line in lines):
            missed.append(f"{source!r}: {expected}, not {lines}")
    assert not missed, "\n".join(missed)


HARMLESS = (
    "import numpy as np\nbits = np.random.PCG64(1)\ng = np.random.Generator(bits)",
    "import torch\ng = torch.Generator().manual_seed(1)",
    "import datetime\ndatetime.datetime(2020, 1, 1)",
    "import time\ntime.sleep(1)",
    "from safetensors.torch import load\nload(b'')",
    "import json\njson.load(open('x'))",
    "class A:\n    def eval(self): ...\nA().eval()",
    "model.eval()",
    "try:\n    f()\nexcept OSError:\n    pass",
    "try:\n    f()\nexcept BaseException:\n    undo()\n    raise",
)


def test_what_is_harmless_is_left_alone():
    accused = [line for source in HARMLESS for line in violations(source, "planted.py")]
    assert not accused, "\n".join(accused)


def test_only_the_clock_may_ask_for_the_time():
    source = "import time\ntime.time_ns()"
    assert violations(source, "core/clock.py") == []
    assert violations(source, "market/clock.py") == [
        "market/clock.py:2: time.time_ns asks the machine for the time"
    ]


def test_only_the_clock_may_write_times():
    source = "import numpy as np\nstr(np.datetime64(0, 'ms'))"
    assert violations(source, "core/clock.py") == []
    assert violations(source, "market/bars.py") == [
        "market/bars.py:2: numpy.datetime64 writes times in words of its own"
    ]


@pytest.mark.parametrize("name", ["time.perf_counter", "time.process_time"])
def test_only_the_benchmarks_may_hold_a_stopwatch(name):
    source = f"import time\n{name}()"
    assert violations(source, "bench/timing.py") == []
    assert violations("import time\ntime.time_ns()", "bench/timing.py") == [
        "bench/timing.py:2: time.time_ns asks the machine for the time"
    ]
    for file in ("core/clock.py", "market/bench.py", "market/bench/timing.py"):
        assert violations(source, file) == [f"{file}:2: {name} asks the machine for the time"]


def test_the_clock_and_the_benchmarks_use_what_is_allowed_to_them():
    users = {
        path.relative_to(SOURCE).parts[0]
        for path in FILES
        if "perf_counter" in path.read_text(encoding="utf-8") and path.name != "clock.py"
    }
    assert users == {"bench"}


def test_only_the_loader_of_plug_ins_may_run_a_file_of_the_user():
    source = "import importlib.util\nimportlib.util.module_from_spec(spec)"
    assert violations(source, "core/plugins.py") == []
    for file in ("cli/data/check_features.py", "market/plugins.py", "algorithms/run/plugins.py"):
        assert violations(source, file) != []
    for banned in ("import runpy\nrunpy.run_path(path)", "exec(source)", "compile(a, b, c)"):
        assert violations(banned, "core/plugins.py") != []


def test_only_the_module_of_late_names_may_import_by_name():
    source = "from importlib import import_module\nimport_module(name)"
    assert violations(source, "core/lazy.py") == []
    assert violations("import importlib.util", "core/lazy.py") != []
    for file in ("market/__init__.py", "evaluation/__init__.py", "evaluation/engine/run.py"):
        assert violations(source, file) != []
