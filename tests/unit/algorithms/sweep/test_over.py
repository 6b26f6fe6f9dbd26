"""`--over`: what is searched, as text; and refusals that say what to write instead."""

import pytest

from search_lab import refused
from stormsail.algorithms.population.config import RunFile, SearchConfig, SearchedSetting
from stormsail.algorithms.sweep.over import parse_over, with_over


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("ppo.learning_rate=log:1e-5:1e-2", {"min": 1e-5, "max": 1e-2, "is_log_scale": True}),
        ("ppo.clip_range=float:0.1:0.3", {"min": 0.1, "max": 0.3}),
        ("ppo.n_epochs=int:1:8", {"min": 1.0, "max": 8.0}),
        ("ppo.n_envs=log:8:512", {"min": 8.0, "max": 512.0, "is_log_scale": True}),
        ("network.memory = lstm,gru", {"values": ["lstm", "gru"]}),
        ("kl.use_ema=true,false", {"values": [True, False]}),
        ("ppo.n_envs=8,16.5,x", {"values": [8, 16.5, "x"]}),
    ],
)
def test_a_text_is_a_range_or_a_list(text, table):
    assert parse_over(text) == (text.partition("=")[0].strip(), table)


def test_a_later_text_takes_the_place_of_an_earlier_one_and_of_the_file():
    table = {"ppo.clip_range": {"values": [0.1]}, "ppo.gamma": {"values": [0.9]}}
    new = with_over(table, ["ppo.clip_range=float:0:1", "ppo.clip_range=float:0.1:0.2"])
    assert new == {"ppo.clip_range": {"min": 0.1, "max": 0.2}, "ppo.gamma": {"values": [0.9]}}


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "ppo.learning_rat=log:1e-5:1e-2",
            "config-unknown-key",
            "Did you mean `ppo.learning_rate`",
        ),
        ("ppo=1,2", "config-unknown-key", "must name a setting of a training"),
        ("ppo.learning_rate", "config-override", "must have the form"),
        ("ppo.learning_rate=", "config-override", "must have the form"),
        ("ppo.learning_rate=log:1e-5", "config-override", "must have the form"),
        ("ppo.learning_rate=log:a:b", "config-override", "must have the form"),
        ("ppo.learning_rate=1e-5:1e-2", "config-override", "must have the form"),
        ("network.memory=lstm", "config-override", "a single value is set with `--set`"),
        ("network.memory=lstm,", "config-override", "must have the form"),
        ("network.memory=lstm,lstm", "config-inconsistent", "different values"),
        ("ppo.learning_rate=log:1e-2:1e-2", "config-inconsistent", "`min` must be below `max`"),
        ("ppo.learning_rate=log:1e-2:1e-5", "config-inconsistent", "`min` must be below `max`"),
        ("ppo.learning_rate=log:0:1e-2", "config-inconsistent", "above 0 on a log scale"),
        ("ppo.learning_rate=log:-1:1e-2", "config-inconsistent", "above 0 on a log scale"),
        ("ppo.clip_range=float:0:inf", "config-value", "finite"),
        ("ppo.clip_range=int:0:1", "config-override", "Write `float`"),
        ("ppo.n_epochs=float:1:8", "config-override", "Write `int`"),
        ("ppo.n_epochs=int:1:2.5", "config-override", "Round the bounds"),
    ],
)
def test_what_is_no_search_is_refused_in_words(text, code, words):
    error = refused(parse_over, text)
    assert error.code == code
    assert words in str(error)


def test_populations_and_searches_describe_a_setting_by_the_same_words():
    shared = set(SearchedSetting.model_fields)
    assert shared == {"min", "max", "values", "is_log_scale"}
    assert issubclass(SearchConfig, SearchedSetting)
    assert RunFile.model_fields["search"].annotation is not None


@pytest.mark.refusal
def test_a_rate_that_the_optimizer_would_cut_off_is_refused_in_a_search_too():
    table = {"over": {"ppo.learning_rate": {"min": 1e-6, "max": 10.0}}}
    wish = {"ppo": {"optimizer_lr_max": 1.0}, "search": table}
    assert "cut off there" in str(refused(RunFile.from_mapping, wish))
    wish = {"search": {"over": {"ppo.learning_rat": {"min": 1e-6, "max": 10.0}}}}
    assert "did you mean `ppo.learning_rate`?" in str(refused(RunFile.from_mapping, wish))
