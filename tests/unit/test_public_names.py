"""The public names: one frozen list per package, the signatures, and what the pages import.

Whoever adds, renames or removes a public name changes a list here, on purpose: other people's code
depends on them.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import stormsail

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(stormsail.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Every package with an `__all__`, and what it holds.
PUBLIC = {
    "stormsail": (
        "Agent ArrayDecision Backtest BacktestConfig Bars Callback Checkpoint Decision Evaluated "
        "Evaluation MarketConfig Panel Progress Run SealedBarsWarning StepRecord Stop "
        "StormsailError TrainConfig Validation ValidationConfig backtest callback feature "
        "functional load_bars make_market network optim report reward task train validate world"
    ),
    "stormsail.algorithms": (
        "Callback Checkpoint Evaluated PopulationRun Progress Run RunFile SearchRun Stop "
        "TrainConfig Trainer callback fitter market_panel search train train_population"
    ),
    "stormsail.algorithms.config": (
        "AdversaryConfig BcConfig CheckpointConfig DataConfig EntropyConfig KlConfig "
        "ObservationConfig OptimizerConfig PpoConfig ReturnConfig RiskConfig TargetConfig "
        "TaskConfig TrainConfig ValidationConfig ValueClipConfig VgsConfig Whole"
    ),
    "stormsail.evaluation": (
        "Backtest BacktestConfig Comparison SelfTest TrialLedger Validation ValidationConfig "
        "attribution_of backtest break_even calibration_of capacity_curve compare_results "
        "comparison_page cost_sweep deflated_sharpe performance_of probabilistic_sharpe "
        "probability_of_overfitting read_result read_results read_run replay report_page "
        "run_baselines significance_of stress validate write_backtest write_validation"
    ),
    "stormsail.execution.loopback": (
        "Exchange Fault Loopback Request VirtualClock candles candles_of draw_faults rates"
    ),
    "stormsail.functional": (
        "advantage categorical distribution perturbation policy population quantile recurrence "
        "return_scale returns risk risk_gate statistics twin value_clip"
    ),
    "stormsail.functional.risk": (
        "ESTIMATORS RANK_TOLERANCE account_share budget_advantage budget_trace calibration_slope "
        "categorical_budget_advantage categorical_budget_trace categorical_cvar "
        "categorical_risk_advantage categorical_value_at_risk cvar empirical_cvar "
        "empirical_cvar_error floor_share mixing_share pull_to_action risk_advantage "
        "shortfall_increment shortfall_level shrink_to_mean stratified_cvar_error value_at_risk "
        "values_at_risk weighted_value_at_risk"
    ),
    "stormsail.market": (
        "Bars Funding Interval MarketConfig Panel Simulator Span Store load_panel split_by_time"
    ),
    "stormsail.market.checks": (
        "BY_NAME BY_NUMBER DEFECTS Defect Finding Loaded Place RULES Report SUFFIXES check_bars "
        "check_file check_funding check_funding_table check_loaded check_table interval_of "
        "Reading Reference load_file read_reference repair repair_file"
    ),
    "stormsail.market.features": (
        "ACCOUNT_FEATURES AccountTensors BarTensors Feature FeatureSet FeatureSpec Features "
        "Leak LeakReport REGISTRY Registry Scaler Schema account_features check_leaks "
        "check_schema default_features default_specs draw_cuts feature sample_bars schema_hash "
        "search_leaks"
    ),
    "stormsail.market.fetch": (
        "FetchResult Gap Progress RetryPolicy connect fetch_bars fetch_funding"
    ),
    "stormsail.market.gymnasium": "MarketEnv MarketVectorEnv StableBaselinesEnv",
    "stormsail.market.importers": "Imported Options from_frame import_files",
    "stormsail.market.rewards": (
        "BoundReward LOG_GROWTH REWARDS Reward StepRecord bound_reward reward"
    ),
    "stormsail.market.simulator": "Info MarketConfig Simulator State",
    "stormsail.market.synthetic": (
        "Optimum Process START_MS WORLDS World WorldConfig all_worlds best_growth config_of "
        "generate path_optimum process_of world write_world"
    ),
    "stormsail.modules": (
        "Agent AgentSpec CriticConfig Decision Mlp NetworkConfig PolicyConfig linear"
    ),
    "stormsail.monitors": "Ending LoggedRun MetricsLogger MlflowLogger WandbLogger",
    "stormsail.optim": "AdaptiveUPGD GradientPipeline UPGD UPGDW VarianceGradientScaler",
    "stormsail.optim.upgd": "AdaptiveUPGD UPGD UPGDW",
    "stormsail.optim.vgs": "VarianceGradientScaler",
    "stormsail.tasks": (
        "Acrobot CartPole ContinuousActions ControlInfo ControlState ControlTask DiscreteActions "
        "MountainCarContinuous NAMES Pendulum Recall TASKS make task"
    ),
}

# Modules of formulas hold functions that anybody may call; their signatures are part of the name.
SIGNATURES = {
    "stormsail": {
        "train": (
            "config=None, *, env=None, out=None, callbacks=(), loggers=(), extend_to=None, "
            "start_from=None, keep_optimizer=False, tensorboard=True, clock=None, settings"
        ),
        "Agent.load": "path, *, device='cpu'",
        "Agent.decide": (
            "self, observation, memory=None, *, deterministic=None, generator=None, mask=None"
        ),
        "Agent.evaluate": (
            "self, env, episodes=64, *, seed=0, policy=None, alpha=0.05, max_steps=20000"
        ),
        "backtest": "agent, bars, config=None, *, symbols=None, out=None, workspace=None, settings",
        "validate": (
            "config=None, rules=None, *, out=None, workspace='runs', name=None, jobs=1, "
            "explanations=None, on_progress=None, clock=None, settings"
        ),
        "report": "results, out, *, runs=()",
        "load_bars": "source, *, symbols=None, interval=None",
        "make_market": (
            "bars=None, *, num_envs=1, agent=None, config=None, span=None, render_mode=None"
        ),
    },
    "stormsail.functional.returns": {
        "gae": "reward, value, bootstrap, terminated, truncated, *, gamma, lam",
        "quantile_nstep_targets": (
            "reward, bootstrap_quantiles, terminated, truncated, *, gamma, steps"
        ),
        "quantile_lambda_targets": (
            "reward, bootstrap_quantiles, terminated, truncated, *, gamma, lam"
        ),
        "categorical_nstep_targets": (
            "reward, bootstrap_probs, terminated, truncated, atoms, *, gamma, steps"
        ),
    },
    "stormsail.functional.policy": {
        "clipped_surrogate": "log_prob, old_log_prob, advantage, *, clip",
        "centred": "values, probability",
        "expected_surrogate": "log_prob, old_log_prob, advantage, *, clip",
        "kl_estimate": "log_ratio, *, kind",
        "awr_weight": "advantage, *, beta, max_weight",
    },
    "stormsail.functional.advantage": {
        "normalise": (
            "advantage, *, weight=None, magnitude=None, mode='floor', floor=1e-08, per_env=False, "
            "previous=None"
        ),
        "running_moments": "values, previous, *, weight=None, beta",
        "earlier_moments": "previous, updated, *, floor",
        "normalise_by": "advantage, running, *, weight=None, magnitude=None, floor=1e-08",
    },
    "stormsail.functional.quantile": {
        "midpoints": "n, *, like=None",
        "tail_weights": "n, *, like=None",
        "levels_of": "weight",
        "weights_of": "tau",
        "expectation": "quantiles, *, weight=None",
        "huber_loss": "predicted, target, tau, *, kappa, target_weight=None",
    },
    "stormsail.functional.categorical": {
        "project": "value, atoms",
        "project_distribution": "probs, support, atoms",
        "project_law": "probs, support, atoms",
        "cross_entropy": "logits, target",
    },
    "stormsail.functional.value_clip": {
        "clip_quantiles": "new, old, *, epsilon, mode, variance_factor=2.0, weight=None",
        "clip_distribution": "probs, old_probs, atoms, *, epsilon, mode, variance_factor=2.0",
        "clip_law": "probs, old_probs, atoms, *, epsilon, mode, variance_factor=2.0",
    },
    "stormsail.functional.risk": {
        "cvar": "quantiles, *, alpha, estimator='dirac', weight=None",
        "value_at_risk": "quantiles, *, alpha, weight=None",
        "categorical_cvar": "probs, atoms, *, alpha",
        "empirical_cvar": "sample, *, alpha, weight=None",
        "risk_advantage": "sampled_return, quantiles, *, alpha, weight=None",
        "budget_advantage": (
            "target_atoms, quantiles, budget, *, alpha, weight=None, target_weight=None"
        ),
        "shortfall_increment": "reward, return_so_far, *, level",
        "shortfall_level": "value_at_risk, cvar, *, limit, held=None",
        "account_share": "reward, weight",
        "mixing_share": "wanted, mean_rate, risk_rate, *, most_change",
        "calibration_slope": "product, square, *, errors",
        "floor_share": "gap, weight, *, errors",
        "pull_to_action": "advantage, probability, action, *, share",
        "shrink_to_mean": "advantage, weight, *, share",
        "values_at_risk": "quantiles, *, alphas, weight=None",
        "weighted_value_at_risk": "sample, weight, *, alpha",
        "stratified_cvar_error": "sample, weight, stratum, *, alpha, level, draws, place=None, "
        "reach=1",
    },
    "stormsail.functional.risk_gate": {"risk_gate": "weight, account, limits"},
    "stormsail.optim": {
        "VarianceGradientScaler": (
            "named_parameters, *, optimizer=None, beta=0.99, alpha=0.1, eps_rel=0.001, "
            "warmup_steps=100, min_scaling_factor=0.5, variance_cap=50.0, "
            "statistic='elementwise', reference='absolute', scope='per_tensor', apply_to='auto', "
            "enabled=True"
        ),
    },
    "stormsail.market": {
        "Simulator": (
            "panel, config, *, batch, device='cpu', dtype=torch.float32, features=None, "
            "scaler=None, span=None, without=()"
        ),
        "Simulator.reset": "self, generator",
        "Simulator.step": "self, state, action, generator",
    },
    "stormsail.modules": {
        "Agent.decide": "self, observation, memory, *, deterministic, generator=None, mask=None",
        "Agent.save": "self, path",
        "Agent.load": "path, *, device='cpu'",
    },
    "stormsail.algorithms": {
        "train": (
            "config, *, out=None, on_progress=None, callbacks=(), clock=None, tensorboard=True, "
            "loggers=(), ledger=None, data_hash=None, extend_to=None, start_from=None, "
            "keep_optimizer=False, group=None"
        ),
    },
    "stormsail.evaluation": {
        "backtest": "agent, panel, config",
        "validate": (
            "bars, config, *, fit, ahead=None, ledger=None, name='validation', training=None, "
            "more_self_tests=(), explanations=None, on_progress=None"
        ),
        "deflated_sharpe": "returns, *, trial_sharpes, trials=None, form='monotone'",
        "probability_of_overfitting": "returns, *, blocks=16",
    },
}


def test_every_package_with_public_names_is_listed_here():
    listed = {}
    for path in sorted(PACKAGE.rglob("__init__.py")):
        name = ".".join(("stormsail", *path.relative_to(PACKAGE).parent.parts))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                listed[name] = sorted(ast.literal_eval(node.value))
    assert listed.keys() == PUBLIC.keys()
    changed = [
        f"{name}: only in the package {sorted(set(names) - set(PUBLIC[name].split()))}, "
        f"only in the test {sorted(set(PUBLIC[name].split()) - set(names))}"
        for name, names in listed.items()
        if set(names) != set(PUBLIC[name].split())
    ]
    assert not changed, "\n".join(changed)


def test_every_public_name_is_importable():
    missing = []
    for package, names in PUBLIC.items():
        module = importlib.import_module(package)
        missing += [f"{package}.{name}" for name in names.split() if not hasattr(module, name)]
        assert set(names.split()) <= set(dir(module)), f"dir({package}) shows its public names"
    assert missing == []


def written(function) -> str:
    """Return the arguments of a function as one writes them, without types."""
    words, keyword = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            words.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(parameter.name + default)
    return ", ".join(words)


def test_signatures_are_the_agreed_ones():
    changed = []
    for place, functions in SIGNATURES.items():
        for name, agreed in functions.items():
            thing = importlib.import_module(place)
            for part in name.split("."):
                thing = getattr(thing, part)
            if written(thing) != agreed:
                changed.append(f"{place}.{name}({written(thing)}), not ({agreed})")
    assert not changed, "\n".join(changed)


def test_earlier_names_are_the_same_functions():
    from stormsail.functional import categorical, value_clip

    assert categorical.project_law is categorical.project_distribution
    assert value_clip.clip_law is value_clip.clip_distribution


# ------------------------------------------------------------------ pages


def imports(page: str) -> list[tuple[str, str]]:
    """Return module and name of every `from stormsail… import …` in the Python blocks of a page."""
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "stormsail"
        for alias in node.names
    ]


def is_public(module: str, name: str) -> bool:
    """Say whether the pages may import a name from there: from a package, or a formula."""
    if module in PUBLIC:
        return name in PUBLIC[module].split()
    if module == "stormsail.functional":
        return (PACKAGE / "functional" / f"{name}.py").exists() or f"{module}.{name}" in PUBLIC
    if module.rpartition(".")[0] == "stormsail.functional":
        function = getattr(importlib.import_module(module), name, None)
        return inspect.isfunction(function) and not name.startswith("_")
    return False


def test_pages_import_from_the_public_surface():
    inner = [
        f"{path.relative_to(ROOT)}: from {module} import {name}"
        for path in PAGES
        for module, name in imports(path.read_text())
        if not is_public(module, name)
    ]
    assert not inner, "\n".join(inner)


def test_an_import_from_inside_is_noticed():
    page = (
        "```python\nfrom stormsail.market import Bars\n```\n"
        "```python\nfrom stormsail.market.bars import Bars\n```\n"
        "```python\nfrom stormsail.functional import returns, nothing\n```\n"
        "```python\nfrom stormsail.functional.returns import gae, _hidden\nimport torch\n```\n"
    )
    assert [(module, name) for module, name in imports(page) if not is_public(module, name)] == [
        ("stormsail.market.bars", "Bars"),
        ("stormsail.functional", "nothing"),
        ("stormsail.functional.returns", "_hidden"),
    ]
