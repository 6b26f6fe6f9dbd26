import datetime

import pytest

from stormsail.core.config.overrides import apply_overrides
from stormsail.core.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a.b=0.1", {"a": {"b": 0.1}}),
        ("name=abc", {"name": "abc"}),
        ("name=a=b", {"name": "a=b"}),
        ('name="1"', {"name": "1"}),
        ("name=", {"name": ""}),
        ("list=[1,2]", {"list": [1, 2]}),
        ("list = [1, 2]", {"list": [1, 2]}),
        ("list=[1,2", {"list": "[1,2"}),
        ("on=true", {"on": True}),
        ("on=True", {"on": "True"}),
        ("n=1_000", {"n": 1000}),
        ("n=1e6", {"n": 1e6}),
        ("day=2024-01-31", {"day": datetime.date(2024, 1, 31)}),
        ("a={b = 1}", {"a": {"b": 1}}),
        ("a=1\nb=2", {"a": "1\nb=2"}),
        ("a=1\n[c]", {"a": "1\n[c]"}),
        ("a=1 # no comment", {"a": 1}),
    ],
)
def test_values_are_toml_or_else_text(override, expected):
    assert apply_overrides({}, [override]) == expected


def test_later_ones_win_and_the_rest_stays():
    data = {"ppo": {"clip": 0.2, "epochs": 4}, "name": "x"}
    changed = apply_overrides(data, ["ppo.clip=0.1", "ppo.clip=0.3", "new.deep.key=1"])
    assert changed == {
        "ppo": {"clip": 0.3, "epochs": 4},
        "name": "x",
        "new": {"deep": {"key": 1}},
    }
    assert data == {"ppo": {"clip": 0.2, "epochs": 4}, "name": "x"}


@pytest.mark.refusal
@pytest.mark.parametrize(
    "override", ["ppo.clip", "=1", "", "a..b=1", ".a=1", "a.=1", "a b=1", "é=1"]
)
def test_another_form_is_refused(override):
    with pytest.raises(ConfigError) as caught:
        apply_overrides({}, [override])
    assert str(caught.value) == (
        f"an override must have the form `path=value`; found `{override}`. "
        "Write for example `--set ppo.clip_range=0.1`. [config-override]"
    )


@pytest.mark.refusal
def test_a_path_through_a_plain_value_is_refused():
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"ppo": {"clip": 0.2}}, ["ppo.clip.low=0.1"])
    assert str(caught.value) == (
        "`ppo.clip` must be a table to hold `low`; found 0.2. Set `ppo.clip` itself. "
        "[config-override]"
    )
