"""Arguments, settings and files whose content is wrong."""

import pytest

from abuse_lab import call, check

VERBS = [
    "init",
    "configs",
    "show",
    "search",
    "synth",
    "import",
    "fetch",
    "check",
    "train",
    "resume",
    "population",
    "backtest",
    "attack",
    "validate",
    "performance",
    "report",
    "compare",
    "paper",
    "live",
    "status",
    "stop",
    "rearm",
    "replay",
    "trim",
    "dashboard",
    "alerts",
]
BENCHES = [
    "functional",
    "features",
    "continual",
    "shrinkage",
    "optim",
    "learn",
    "simulator",
    "markets",
    "train",
    "drift",
    "tails",
    "frontier",
    "bets",
    "capping",
    "limits",
    "vgs",
    "robust",
    "population",
    "promotions",
    "wicks",
]


@pytest.mark.parametrize("verb", [*VERBS, *(f"bench {name}" for name in BENCHES)])
def test_an_unknown_option_is_refused(verb, place):
    check(call(*verb.split(), "--no-such-option", cwd=place), 2, "usage")


@pytest.mark.parametrize("verb", [*VERBS, *(f"bench {name}" for name in BENCHES)])
def test_help_is_no_complaint(verb, place):
    result = call(*verb.split(), "--help", cwd=place)
    check(result, 0)
    assert "Usage" in result.out


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",), ("bench", "nonsense"), ("--nonsense",), ("resume",), ("report",),
        ("population",), ("backtest",), ("attack",), ("validate",), ("performance",), ("compare",),
        ("fetch",), ("init",), ("show",), ("search",), ("search", "cart.toml"), ("init", "nothing"),
        ("show", "run", "cart"), ("search", "cart.toml", "--budget", "many"),
        ("search", "cart.toml", "--budget", "1", "--jobs", "x"), ("report", "judged"),
        ("backtest", "run"),
        ("backtest", "run", "--data", "data"),
        ("bench", "wicks"), ("bench", "vgs"), ("bench", "capping"), ("train", "a.toml", "b.toml"),
        ("synth", "ar1", "--bars", "0"), ("synth", "ar1", "--bars", "-1"),
        ("synth", "ar1", "--bars", "many"), ("synth", "ar1", "--bars", "1e3"),
        ("synth", "ar1", "--symbols", "0"), ("synth", "ar1", "--seed", "-1"),
        ("train", "cart.toml", "--extend-to", "x"), ("train", "cart.toml", "--out"),
        ("backtest", "run", "--data", "data", "--out", "new", "--engine", "other"),
        ("backtest", "run", "--data", "data", "--out", "new", "--burn-in", "-1"),
        ("attack", "run", "--norm", "l7"), ("attack", "run", "--episodes", "1"),
        ("attack", "run", "--jobs", "0"), ("population", "crowd.toml", "--engine", "cloud"),
        ("population", "crowd.toml", "--workers", "0"), ("bench", "functional", "--steps", "x"),
        ("bench", "functional", "--threads", "-1"), ("bench", "learn", "--jobs", "0"),
        ("fetch", "BTC/USDT", "--timeout", "inf"),
        ("attack", "run", "--jobs", 10**24),
        ("attack", "run", "--seed", 10**24),
        ("validate", "tiny.toml", "--out", "new", "--seeds", 10**24),
        ("validate", "tiny.toml", "--out", "new", "--folds", 10**24),
        ("backtest", "run", "--data", "data", "--out", "--quiet"),
        ("show", "run", "--json-out", "--quiet"),
        ("check", "--features", "--plugin", "own.py"),
        ("population", "crowd.toml", "--workers", 10**24),
        ("fetch", "BTC/USDT", "--tries", "0"), ("bench", "functional", "--out", "no/such/x.json"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)  # fmt: skip
def test_words_that_are_no_command_line_are_refused(words, place):
    check(call(*words, cwd=place), 2, "usage")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("synth",), "missing-argument"), (("synth", "nowhere"), "unknown-choice"),
        (("synth", "ar1", "--interval", "7x"), "data-interval"),
        (("synth", "ar1", "--set", "nonsense"), "config-override"),
        (("synth", "ar1", "--set", "nonsense=1"), "config-unknown-key"),
        (("synth", "ar1", "--bars", 10**12), "out-of-memory"),
        (("synth", "ar1", "--symbols", 10**9), "out-of-memory"),
        (("attack", "cart", "--episodes", 10**18), "out-of-memory"),
        (("import",), "config-value"), (("import", "no/*.csv", "--store", "new"), "data-source"),
        (("import", "bars.csv", "--store", "new", "--interval", "1x"), "data-interval"),
        (("import", "bars.csv", "--store", "new", "--resample", "0h"), "data-interval"),
        (("import", "bars.csv", "--store", "new", "--repair", "all"), None),
        (("import", "bars.csv", "--store", "new", "--now", "soon"), "config-value"),
        (("import", "--term", "lot=-1", "--store", "data"), "config-value"),
        (("import", "--term", "lot", "--store", "data"), "config-override"),
        (("check",), "data-missing"), (("check", "bars.csv", "--interval", "z"), "data-interval"),
        (("check", "bars.csv", "--repair", "sort"), "missing-argument"),
        (("check", "bars.csv", "--repair", "all", "--out", "x.csv"), "unknown-choice"),
        (("check", "--features", "default", "--interval", "z"), "data-interval"),
        (("backtest", "run", "--data", "data", "--out", "new", "--from", "noon"), "config-value"),
        (("backtest", "run", "--data", "data", "--out", "new", "--to", "x"), "config-value"),
        (("backtest", "run", "--data", "data", "--out", "new", "--symbols", "X"), "data-symbol"),
        (("backtest", "run", "--data", "data", "--out", "new", "--set", "x.y=1"),
         "config-unknown-key"),
        (("backtest", "cart", "--data", "data", "--out", "new"), "config-inconsistent"),
        (("attack", "run", "--alpha", "0"), "out-of-range"),
        (("attack", "run", "--alpha", "nan"), "out-of-range"),
        (("attack", "run", "--attacks", "magic"), "unknown-choice"),
        (("attack", "run", "--epsilons", "x"), None), (("attack", "run", "--epsilons", "-1"), None),
        (("compare", "judged"), None), (("compare", "judged", "judged"), "out-of-range"),
        (("performance", "judged", "--benchmark", "luck"), "unknown-choice"),
        (("report", "data", "--out", "x.html"), None),
        (("train", "cart.toml", "--keep-optimizer", "--out", "new"), "config-inconsistent"),
        (("train", "--extend-to", "10", "--out", "new"), None),
        (("train", "cart.toml", "--logger", "paper", "--out", "new"), None),
        (("train", "cart.toml", "--task", "gym:a:b:c", "--out", "new"), "config-value"),
        (("train", "cart.toml", "--task", "gym:nowhere:X-v0", "--out", "new"), "config-value"),
        (("train", "cart.toml", "--task", "gym:", "--out", "new"), "config-value"),
        (("train", "cart.toml", "--task", "gym:NoSuch-v9", "--out", "new"), "config-value"),
        (("train", "cart.toml", "--task", "CartPole", "--out", "new"), "config-value"),
        (("population", "cart.toml", "--out", "new"), "config-value"),
        (("population", "crowd.toml", "--cpus", "1", "--out", "new"), "config-inconsistent"),
        (("search", "cart.toml", "--budget", "0", "--out", "new"), "out-of-range"),
        (("search", "cart.toml", "--budget", "1", "--jobs", "-1", "--out", "new"), "out-of-range"),
        (("search", "cart.toml", "--budget", "1", "--out", "new"), "config-value"),
        (("search", "cart.toml", "--budget", "1", "--over", "ppo.n_epochs", "--out", "new"), None),
        (("search", "cart.toml", "--budget", "1", "--over", "ppo.gama=log:1:2", "--out", "new"),
         None),
        (("search", "cart.toml", "--budget", "1", "--over", "seed=1,2", "--out", "new"),
         "config-inconsistent"),
        (("search", "cart.toml", "--budget", "1", "--over", "ppo.n_epochs=int:5:1", "--out", "new"),
         None),
        (("search", "cart.toml", "--budget", "1", "--plugin", "nowhere.py", "--out", "new"),
         "plugin-file"),
        (("search", "run", "--budget", "1", "--out", "new"), None),
        (("init", "demo", "--store", "data", "--out", "new"), "config-inconsistent"),
        (("init", "env", "--interval", "1h", "--out", "new"), "config-inconsistent"),
        (("init", "bars", "--interval", "7x", "--out", "new"), "data-interval"),
        (("init", "demo", "--out", ""), "output-kind"),
        (("show", "nowhere"), "artifact-missing"), (("show", "x\0y"), None),
        (("show", "run", "--plugin", "nowhere.py"), "plugin-file"),
        (("configs", "quikstart"), "unknown-choice"),
        (("resume", "run", "--extend-to", "1"), None), (("resume", "judged"), None),
        (("resume", "run", "--extend-to", "-1"), "usage"),
        (("train", "cart.toml", "--extend-to", "0", "--out", "new"), "usage"),
        (("fetch", "BTC/USDT", "--exchange", "nowhere", "--since", "2024-01-01"), None),
        (("fetch", "BTC/USDT", "--since", "2999-01-01"), "config-value"),
        (("fetch", "BTC/USDT", "--since", "soon"), "config-value"),
        (("bench", "simulator", "--device", "cuda:7"), "unknown-choice"),
        (("bench", "simulator", "--device", "meta"), "unknown-choice"),
        (("bench", "optim", "--device", "gpu"), "unknown-choice"),
        (("bench", "train", "--device", "cpu:9"), "unknown-choice"),
        (("validate", "cart.toml", "--out", "new"), None),
        (("validate", "tiny.toml", "--out", "new", "--folds", "0"), None),
        (("validate", "tiny.toml", "--out", "new", "--judge", "x=1"), "config-unknown-key"),
        (("validate", "tiny.toml", "--out", "new", "--explain", "x=1"), None),
        (("train", "\udcff.toml"), "usage"), (("report", "judged", "--out", "\udcfe"), "usage"),
        (("train", "cart.toml", "--out", "\udc80\udc81"), "usage"),
        (("train", "new\nline.toml"), "config-unreadable"),
        (("train", "\x1b[31mred.toml"), "config-unreadable"),
        (("train", ""), "config-unreadable"), (("resume", ""), None),
    ],
    ids=lambda value: " ".join(map(ascii, value)) if isinstance(value, tuple) else str(value),
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(words, code, place):
    result = call(*words, cwd=place)
    assert result.code != "unexpected", result.err
    check(result, 2, code or result.code or "none")
    assert not (place / "new").exists()
    assert "\x1b" not in result.line


SETTINGS = [
    ('device="cuda"', "config-value"), ('device="gpu"', "config-value"),
    ('device="meta"', "config-value"), ('device="cuda:99"', "config-value"), ("device=1", None),
    (f"ppo.n_envs={10**12}", "config-inconsistent"), (f"ppo.n_envs={10**30}", None),
    (f"ppo.n_steps={10**12}", "config-inconsistent"), ("ppo.n_envs=0", "config-value"),
    ("ppo.n_envs=-1", "config-value"), ("ppo.n_envs=1.5", "config-value"),
    ("ppo.n_envs=true", "config-value"), ('ppo.n_envs="4"', "config-value"),
    ("ppo.n_envs=nan", "config-value"), ("ppo.n_envs=inf", "config-value"),
    (f"validation.episodes={10**12}", "out-of-memory"),
    (f"task.data.world_bars={10**12}", None), ("critic.num_quantiles=99999999", "config-value"),
    ("network.lstm_hidden_size=99999999", "config-value"), ("network.encoder_sizes=[0]", None),
    ("ppo.gamma=2", "config-value"), ("ppo.learning_rate=-1", "config-value"),
    ("ppo.total_steps=0", "config-value"), ("seed=-1", "config-value"),
    ("seed=99999999999999999999999", None), ("threads=0", "config-value"),
    ('optimizer.name="adam"', "config-unknown-key"), ('network.memory="rnn"', "config-value"),
    ('optimizer.optimizer_class="Adam"', "config-value"), ("ppo", "config-override"),
    ("=1", "config-override"), ("ppo.=1", "config-override"), ("ppo.n_envs.x=1", None),
    ("ppo=1", "config-value"), ("x.y.z=1", "config-unknown-key"), ('task.name=""', "config-value"),
    ('task.name="gym:"', "config-value"), ("task.name=3", "config-value"),
    ('task.market.levels=[]', None), ('task.data.interval="1x"', None),
    ("ppo.batch_size=7", None), ("ppo.n_steps=7", None), ("checkpoint.disk_limit_mb=0", None),
    ("ppo.clip_range=" + "9" * 5000, None), ("seed=" + "[" * 500, None),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "code"), SETTINGS, ids=lambda value: str(value)[:40])
def test_a_setting_that_does_not_fit_is_refused(setting, code, place):
    result = call("train", "cart.toml", "--out", "new", "--set", setting, cwd=place)
    if setting in HARMLESS:
        check(result, 0)
        return
    assert result.code != "unexpected", result.err
    check(result, 2, code or result.code or "none")
    assert not (place / "new").exists()


HARMLESS = {f"task.data.world_bars={10**12}", 'task.data.interval="1x"'}
"""Settings of the market that the task of this file does not read."""


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('network.encoder_sizes="6"', "`network.encoder_sizes` must be a list; found"),
        ("plugins=3", "`plugins` must be a list; found 3"),
        ("callbacks=[3]", "`callbacks.0` must be text; found 3"),
        ("ppo=3", "`ppo` must be a section of settings; found 3"),
        ('task.market.features=["x"]', "`task.market.features.0` must be a section of settings"),
    ],
)
def test_a_type_is_named_in_words_of_a_configuration(setting, words, place):
    result = call("train", "cart.toml", "--out", "new", "--set", setting, cwd=place)
    check(result, 2, "config-value")
    assert words in result.line


@pytest.mark.parametrize(
    ("method", "body"),
    [("on_update", "progress"), ("on_evaluation", "evaluated"), ("on_checkpoint", "checkpoint")],
)
def test_a_callback_of_a_plugin_that_raises_is_named(method, body, place):
    name = f"raises_{method}"
    (place / f"{name}.py").write_text(
        "import stormsail as ss\n"
        f"@ss.callback(name={name!r})\n"
        f"class Own(ss.Callback):\n    def {method}(self, {body}): raise KeyError('mine')\n"
    )
    words = ("--plugin", f"{name}.py", "--set", f"callbacks=['{name}']")
    result = call("train", "cart.toml", "--out", "new", *words, cwd=place)
    check(result, 2, "plugin-result")
    assert f"the callback `{name}` must run; found KeyError: 'mine'." in result.line


def test_a_callback_of_a_plugin_that_cannot_be_made_is_named(place):
    (place / "unmade.py").write_text(
        "import stormsail as ss\n@ss.callback(name='unmade')\n"
        "class Own(ss.Callback):\n    def __init__(self): 1 / 0\n"
    )
    words = ("--plugin", "unmade.py", "--set", "callbacks=['unmade']")
    result = call("train", "cart.toml", "--out", "new", *words, cwd=place)
    check(result, 2, "plugin-result")
    assert "the callback `unmade` must run; found ZeroDivisionError" in result.line


def test_a_feature_set_without_features_says_what_to_do(place):
    words = ("--set", "task.market.features=[]")
    result = call("train", "tiny.toml", "--out", "new", *words, cwd=place)
    check(result, 2, "feature-duplicate")
    assert "found no feature. Name one, or leave `features` out" in result.line


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ('optimizer.name="adam"', "`optimizer.optimizer_class`"),
        ('network.memory="rnn"', "`lstm` or `gru`"),
        ("clip_range=0.1", "`ppo.clip_range`"),
    ],
)
def test_a_hint_names_what_was_probably_meant(setting, hint, place):
    result = call("train", "cart.toml", "--out", "new", "--set", setting, cwd=place)
    assert result.status == 2
    assert f"Did you mean {hint}?" in result.line


def test_a_world_beside_a_store_is_refused(place):
    words = ("--set", 'task.data.world="ar1"')
    result = call("train", "tiny.toml", "--out", "new", *words, cwd=place)
    check(result, 2, "config-inconsistent")
    assert "`store`" in result.line
    assert "`world`" in result.line


TOML = {
    "unclosed": "[ppo",
    "twice": "seed = 1\nseed = 2",
    "table twice": "[ppo]\n[ppo]",
    "tabs": "\t= 1",
    "no value": "seed =",
    "text": "hello",
    "array": "[[ppo]]\nn_envs = 1",
    "null byte": "seed = 1\0",
    "bom": "\ufeffseed = 1\n[nonsense]",
    "other sections": "[nonsense]\nx = 1",
    "date": "seed = 2020-01-01",
    "deep": "a = " + "[" * 2000 + "]" * 2000,
    "dotted": ".".join("a" * 3000) + " = 1",
    "long number": "seed = " + "1" * 5000,
    "wrong type": "ppo = 3",
    "list": "ppo = [1]",
    "string": 'seed = "1"',
    "nested": "[task.data.store]\nx = 1",
    "nan": "[ppo]\ngamma = nan",
    "population": "[population]\npopulation_size = 1",
    "empty key": '"" = 1',
    "empty sections": "[ppo]\n[task.data]\n",
}


@pytest.mark.parametrize("name", TOML)
@pytest.mark.parametrize("verb", ["train", "validate", "population", "search"])
def test_a_configuration_with_wrong_content_is_refused(verb, name, place):
    (place / "wrong.toml").write_text(TOML[name])
    more = ("--budget", 1) if verb == "search" else ()
    result = call(verb, "wrong.toml", "--out", "new", *more, cwd=place)
    assert result.code.startswith("config-"), result.err
    check(result, 2, result.code)


GOOD = "1609459200000,100,101,99,100.5,10\n1609462800000,100,101,99,100.5,10\n"
HEAD = "ts,open,high,low,close,volume\n"
CSV = {
    "no rows": HEAD,
    "no head": GOOD,
    "one column": "a\n1\n2\n",
    "no times": "open,close\n1,2\n",
    "text": HEAD + "x,y,z,a,b,c\n" * 3,
    "ragged": HEAD + "1,2\n1,2,3,4,5,6,7\n",
    "twice": HEAD + GOOD * 2,
    "negative": HEAD + GOOD.replace("100.5", "-5"),
    "nan": HEAD + GOOD.replace("100.5", "nan"),
    "infinite": HEAD + GOOD.replace("100.5", "inf"),
    "quotes": HEAD + '"' + GOOD,
    "null bytes": HEAD + "\0" * 100,
    "columns twice": "ts,ts,open,high,low,close\n1,1,1,1,1,1\n",
    "wide": ",".join(f"c{i}" for i in range(5000)) + "\n",
    "blank": "\n\n\n",
    "spaces": "   ",
    "long line": HEAD + "9" * 200_000 + "\n",
    "huge times": HEAD + GOOD.replace("1609", "9999999999"),
    "years": HEAD + "2021,1,1,1,1,1\n2022,1,1,1,1,1\n",
    "zero prices": HEAD + "1609459200000,0,0,0,0,0\n1609462800000,0,0,0,0,0\n",
    "formula": HEAD + "=1+1,2,3,4,5,6\n",
    "unsorted": HEAD + "".join(reversed(GOOD.splitlines(True))),
}


@pytest.mark.parametrize("name", CSV)
def test_bars_with_wrong_content_are_not_imported(name, place):
    (place / "wrong.csv").write_text(CSV[name])
    words = ("--symbol", "AAA/USDT", "--interval", "1h")
    result = call("import", "wrong.csv", "--store", "new", *words, cwd=place)
    assert result.code.startswith("data-"), result.err
    check(result, 2, result.code)


@pytest.mark.parametrize("name", CSV)
def test_bars_with_wrong_content_are_found_wanting(name, place):
    (place / "wrong.csv").write_text(CSV[name])
    words = ("--symbol", "AAA/USDT", "--interval", "1h")
    result = call("check", "wrong.csv", *words, cwd=place)
    check(result, 1)
    assert result.out.startswith("refused"), result.out
