"""Importing a package loads no library that only some of its users need; counted, not timed."""

import subprocess
import sys

import pytest

HEAVY = ("torch._inductor", "plotly", "scipy.stats", "gymnasium", "mlflow", "wandb")
"""What no import of a package may load: a second or more of start-up, used by few."""

COMPUTING = ("torch", "numpy", "pyarrow", "pydantic")
"""What the command line may load only once a command runs."""

MARKET = "stormsail/Market-v0"


def after(code: str) -> str:
    """Return what a fresh interpreter prints after running the code."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1] if run.stdout else ""


def loaded(code: str, libraries: tuple[str, ...]) -> str:
    """Return which of the libraries are loaded after the code."""
    return after(
        f"{code}\nimport sys\nprint([name for name in {libraries} if name in sys.modules])"
    )


@pytest.fixture(scope="module")
def beyond_torch():
    """Return which heavy libraries a line loads in an interpreter that has loaded torch alone.

    It is forked from one that has, so that torch, which takes most of the time, is loaded once.
    """
    code = f"""
import os, sys
import torch
print([name for name in {HEAVY} if name in sys.modules], flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        exec(line)
        print([name for name in {HEAVY} if name in sys.modules], flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, line
"""
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout.readline() == "[]\n"  # torch itself loads none of them

    def answer(line):
        server.stdin.write(f"{line}\n")
        server.stdin.flush()
        return server.stdout.readline().strip()

    yield answer
    server.stdin.close()
    server.stdout.close()
    assert server.wait() == 0


@pytest.mark.parametrize(
    "package",
    [
        "stormsail.optim",
        "stormsail.algorithms",
        "stormsail.evaluation",
        "stormsail.market",
        "stormsail.functional.risk",
        "stormsail.modules",
        "stormsail.monitors",
        "stormsail.tasks",
    ],
)
def test_a_package_is_imported_without_what_few_need(package, beyond_torch):
    assert beyond_torch(f"import {package}") == "[]"


@pytest.mark.parametrize(
    "names",
    [
        "from stormsail.algorithms import TrainConfig, Trainer, train",
        "from stormsail.evaluation import backtest, validate",
        "from stormsail.market import Simulator",
        "from stormsail.modules import Agent",
        "from stormsail.monitors import MlflowLogger, WandbLogger",
        "from stormsail.optim import AdaptiveUPGD, GradientPipeline",
    ],
)
def test_the_names_people_use_load_nothing_heavy_either(names, beyond_torch):
    assert beyond_torch(names) == "[]"


def test_the_command_line_is_imported_without_what_computes():
    assert loaded("import stormsail.cli.main", (*HEAVY, *COMPUTING)) == "[]"


def test_the_front_door_is_imported_without_what_computes_and_knows_its_names():
    libraries = (*HEAVY, *COMPUTING, "pandas", "typer", "rich")
    code = "import stormsail as ss\nassert 'train' in dir(ss) and ss.__version__"
    assert loaded(code, libraries) == "[]"


def test_a_name_of_the_front_door_loads_no_more_than_it_needs():
    names = ("torch", "pyarrow", "pandas", *HEAVY)
    assert loaded("import stormsail as ss\nss.StormsailError, ss.functional", names) == "[]"
    few = tuple(name for name in HEAVY if name not in ("gymnasium", "scipy.stats"))
    heavy = (*few, "pandas")  # an environment may be passed to both
    assert loaded("import stormsail as ss\nss.train, ss.Agent", heavy) == "[]"


@pytest.mark.parametrize(
    ("words", "libraries"),
    [
        (["--help"], (*HEAVY, *COMPUTING)),
        (["bench", "--help"], (*HEAVY, "torch", "numpy", "pyarrow")),  # typer loads pydantic here
    ],
)
def test_help_is_printed_without_what_computes(words, libraries):
    code = f"""
import sys
from stormsail.cli.main import main
sys.argv = ["stormsail", *{words}]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    assert loaded(code, libraries) == "[]"


def test_a_configuration_is_declared_without_torch():
    libraries = ("torch", "numpy", "pyarrow", *HEAVY)
    assert loaded("from stormsail.core.config import Config", libraries) == "[]"


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium, stormsail.market",
        "import stormsail.market, gymnasium",
        "import stormsail.market.gymnasium, gymnasium",
        "import stormsail.core.gymnasium_plugin, gymnasium",
        "import stormsail.market\nfrom gymnasium import spaces\nimport gymnasium",
        "import stormsail.market, importlib.util as u\nu.find_spec('gymnasium')\nimport gymnasium",
    ],
)
def test_gymnasium_knows_the_market_in_whichever_order_both_are_imported(imports):
    assert after(f"{imports}\nprint(gymnasium.spec('{MARKET}').id)") == MARKET


def test_a_market_is_made_although_gymnasium_was_imported_last():
    code = f"""
import stormsail.market, gymnasium
env, envs = gymnasium.make("{MARKET}"), gymnasium.make_vec("{MARKET}", num_envs=2)
print(env.reset(seed=0)[0].shape, envs.reset(seed=0)[0].shape)
"""
    assert after(code) == "(40,) (2, 40)"


def test_waiting_for_gymnasium_leaves_other_imports_and_its_module_as_they_are():
    code = """
import sys
before = list(sys.meta_path)
import stormsail.market
import stormsail.market.store
assert len(sys.meta_path) == len(before) + 1  # waits once, however often it is imported
import gymnasium, importlib, inspect
assert sys.meta_path == before  # and no longer than until then
assert inspect.getsource(gymnasium).startswith('\"\"\"Root')
assert importlib.reload(gymnasium) is gymnasium
print(sum(name.startswith("stormsail/") for name in gymnasium.registry))
"""
    assert after(code) == "1"
