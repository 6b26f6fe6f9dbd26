import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormsail.core.config import toml

text = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(data=st.dictionaries(text, values, max_size=5))
def test_what_is_written_is_read_back_exactly(data):
    back = tomllib.loads(toml.dumps(data))
    assert back == data
    assert repr(back) == repr(_in_file_order(data))  # 1 and 1.0 and True are equal, but differ


def _in_file_order(data):
    """Sections come after plain values; everything else keeps its order."""
    tables = {key: _in_file_order(value) for key, value in data.items() if isinstance(value, dict)}
    return {key: value for key, value in data.items() if key not in tables} | tables


def test_the_text_is_fixed():
    data = {
        "ppo": {"clip": 0.2, "inner": {"on": True}},
        "name": 'a "quoted"\n\tname\\',
        "levels": [0, 1.5, -2e-7],
        "mixed": [{"a": 1, "b": None}],
        "none": None,
        "odd key": "\x00\x7f é",
        "empty": {},
    }
    assert toml.dumps(data) == (
        'name = "a \\"quoted\\"\\n\\tname\\\\"\n'
        "levels = [0, 1.5, -2e-07]\n"
        "mixed = [{a = 1}]\n"
        '"odd key" = "\\u0000\\u007f é"\n'
        "\n[ppo]\nclip = 0.2\n"
        "\n[ppo.inner]\non = true\n"
        "\n[empty]\n"
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"a": float("nan")}, "the number nan is not finite"),
        ({"a": [float("-inf")]}, "the number -inf is not finite"),
        ({"a": [None]}, "a value of the type NoneType has no TOML form"),
        ({"a": object()}, "a value of the type object has no TOML form"),
        ({"a": "\ud800"}, "the character '\\ud800' is half of a pair and has no UTF-8 form"),
        ({1: 2}, "the key 1 is not a string"),
    ],
)
def test_what_toml_cannot_say_is_refused(data, words):
    with pytest.raises(toml.TomlError) as caught:
        toml.dumps(data)
    assert str(caught.value) == words


def test_values_are_shown_as_they_would_be_written_and_short():
    deep = [1]
    for _ in range(10**5):
        deep = [deep]
    assert toml.shown(True) == "true"
    assert toml.shown("a") == '"a"'
    assert toml.shown(None) == "nothing"
    assert toml.shown([1, "b"]) == '[1, "b"]'
    assert toml.shown({"a": 1}) == "{a = 1}"
    assert toml.shown(float("nan")) == "nan"
    assert toml.shown("x" * 100) == '"' + "x" * 76 + "..."
    assert toml.shown(deep) == "a value nested too deeply to show"
