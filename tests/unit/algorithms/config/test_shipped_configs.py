"""Files in `configs/` say what differs from the defaults, and nothing else without a word."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.population.config import PopulationConfig, RunFile, SearchConfig
from stormsail.algorithms.update.optimizers import weight_decay
from stormsail.core.config import Config
from stormsail.optim import UPGD, UPGDW, AdaptiveUPGD, VarianceGradientScaler

CONFIGS = Path(__file__).parents[4] / "configs"
FILES = sorted(CONFIGS.glob("**/*.toml"))
MARK = re.compile(r"#\s*default\b")
ALWAYS_SAID = {"task.name", "task.data.world"}
"""What a file is about may be said without a mark."""
SEARCH = "population.search"
"""A table by paths of settings, which have no defaults together."""
DEFAULT = RunFile(population=PopulationConfig())


def leaves(table, model, above=""):
    """Yield path, value and default of every setting; None for one that does not exist."""
    for name, value in table.items():
        path = f"{above}{name}"
        default = getattr(model, name, None) if name in type(model).model_fields else None
        if isinstance(value, dict) and isinstance(default, Config):
            yield from leaves(value, default, f"{path}.")
        elif path == SEARCH:
            for searched, inner in value.items():
                yield from leaves(inner, SearchConfig.model_construct(), f'{path}."{searched}".')
        else:
            known = name in type(model).model_fields
            yield path, value, default if known else None, known


def marked(text):
    """Return the settings whose line says that it only repeats the default."""
    result, section = {}, ""
    for line in text.splitlines():
        head = re.fullmatch(r"\[([\w.\"]+)\]\s*(?:#.*)?", line)
        setting = re.match(r"(\w+)\s*=", line)
        if head:
            section = head[1] + "."
        elif setting:
            result[section + setting[1]] = MARK.search(line) is not None
    return result


def problems(text):
    """Return what is wrong with a file: unknown settings, and defaults repeated in silence."""
    words, seen = marked(text), []
    for path, value, default, known in leaves(tomllib.loads(text), DEFAULT):
        plain = list(default) if isinstance(default, tuple) else default
        if not known:
            seen.append(f"{path} does not exist")
        elif path not in words:
            seen.append(f"{path} does not stand on a line of its own")
        elif (value == plain) != words[path] and not (path in ALWAYS_SAID and value == plain):
            said = "says" if words[path] else "does not say"
            seen.append(f"{path} is {value}, the default is {plain}, and the line {said} so")
    return seen


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONFIGS)))
@pytest.mark.spec("X23")
def test_a_shipped_file_names_settings_that_exist_and_says_which_repeat_the_default(file):
    assert problems(file.read_text(encoding="utf-8")) == []
    RunFile.load(file)


def test_there_are_files_to_check():
    assert CONFIGS / "quickstart.toml" in FILES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[ppo]\ngae_lambda = 0.95\n",
         ["ppo.gae_lambda is 0.95, the default is 0.95, and the line does not say so"]),
        ("[ppo]\ngae_lambda = 0.95  # default\n", []),
        ("[ppo]\ngae_lambda = 0.95  # default, and enough\n", []),
        ("[ppo]\nn_envs = 64\n", []),  # a derived value is fixed by that, whatever it is
        ("[ppo]\nn_envs = 64  # default\n",
         ["ppo.n_envs is 64, the default is None, and the line says so"]),
        ('[task]\nname = "market"\n', []),
        ('[task]\nname = "CartPole-v1"  # default\n',
         ["task.name is CartPole-v1, the default is market, and the line says so"]),
        ("[ppo]\ngae_lambda = 0.9\n", []),
        ("[ppo]\ngae_lambda = 0.9  # default\n",
         ["ppo.gae_lambda is 0.9, the default is 0.95, and the line says so"]),
        ("[ppo]\nn_env = 32\n", ["ppo.n_env does not exist"]),
        ("[pp]\nn_envs = 32\n", ["pp does not exist"]),
        ("[task.data]\nworld_bars = 20_000\n",
         ["task.data.world_bars is 20000, the default is 20000, and the line does not say so"]),
        ("[network]\nencoder_sizes = [64]\n",
         ["network.encoder_sizes is [64], the default is [64], and the line does not say so"]),
        ("[population]\npopulation_size = 8\n",
         ["population.population_size is 8, the default is 8, and the line does not say so"]),
        ("[population]\npopulation_size = 4\n", []),
        ("[population]\nsize = 4\n", ["population.size does not exist"]),
        ('[population.search."ppo.gae_lambda"]\nmin = 0.9\nmax = 1.0\nperturbation_factor = 1.2\n',
         ['population.search."ppo.gae_lambda".perturbation_factor is 1.2, the default is 1.2, and '
          'the line does not say so']),
        ('[population.search."ppo.gae_lambda"]\nlow = 0.9\n',
         ['population.search."ppo.gae_lambda".low does not exist']),
        ("ppo = {n_envs = 32}\n", ["ppo.n_envs does not stand on a line of its own"]),
    ],
)  # fmt: skip
def test_what_is_planted_in_a_file_is_noticed(text, problem):
    assert problems(text) == problem


@pytest.mark.spec("X23")
def test_an_empty_file_is_the_default_run(tmp_path):
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert TrainConfig.load(empty) == TrainConfig()


@pytest.mark.spec("X23")
def test_leaving_a_setting_out_switches_nothing_on():
    default = TrainConfig()
    assert default.bc.awr_coef == 0.0
    assert default.value_clip.clip_range_vf is None
    assert default.value_clip.value_clip_limit is None
    assert default.kl.penalty is False
    assert default.kl.kl_exceed_stop_fraction == 0.25
    assert default.entropy.entropy_boost_factor == 1.0
    assert default.ppo.adv_clip is None
    assert default.vgs.enabled is False


def defaults(callable_):
    result = inspect.signature(callable_).parameters.values()
    return {one.name: one.default for one in result if one.default is not one.empty}


SAME = ("beta_utility", "sigma", "noise_scale", "utility_norm", "lr_compensation")
DIFFERENT = {
    # by design: reinforcement learning wants a larger eps, and AdaptiveUPGD and UPGD decay nothing
    AdaptiveUPGD: {"eps": (1e-5, 1e-8), "weight_decay": (0.0, 0.001)},
    UPGD: {"weight_decay": (0.0, 0.001)},
    UPGDW: {"eps": (1e-5, 1e-8)},
}


@pytest.mark.parametrize("kind", DIFFERENT)
@pytest.mark.spec("X23")
def test_an_optimizer_by_itself_has_the_defaults_of_a_run_but_for_these(kind):
    chosen = TrainConfig().replace(**{"optimizer.optimizer_class": kind.__name__}).optimizer
    own, run = defaults(kind), {**chosen.model_dump(), "weight_decay": weight_decay(chosen)}
    shared = {name: (run[name], own[name]) for name in own.keys() & run.keys()}
    assert {name: pair for name, pair in shared.items() if pair[0] != pair[1]} == DIFFERENT[kind]
    assert set(SAME) <= set(shared)
    if "betas" in own:
        assert own["betas"] == (run["beta1"], run["beta2"])


@pytest.mark.spec("X23")
def test_the_scaler_by_itself_has_the_defaults_of_a_run():
    own, run = defaults(VarianceGradientScaler), TrainConfig().vgs.model_dump()
    shared = own.keys() & run.keys()
    assert {name for name in shared if own[name] != run[name]} == {"enabled", "reference"}
    assert len(shared) == 10
