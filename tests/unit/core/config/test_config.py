import datetime
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType, TypedDict

from stormsail.core.config import Config
from stormsail.core.errors import ConfigError, InvariantError, RangeError


class Mood(Enum):
    CALM = "calm"
    WILD = "wild"


class PPO(Config):
    """The update."""

    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Half-width of the ratio band."""

    environments: PositiveInt = 8
    minibatches: PositiveInt = 4

    @model_validator(mode="after")
    def _minibatches_divide_environments(self) -> Self:
        if self.environments % self.minibatches:
            raise ConfigError(
                "config-inconsistent",
                wrong="`minibatches` must divide `environments`",
                found=f"environments={self.environments}, minibatches={self.minibatches}",
                remedy="Use a power of two for both.",
            )
        return self


class Quantile(Config):
    kind: Literal["quantile"] = "quantile"
    n: PositiveInt = 32


class Scalar(Config):
    kind: Literal["scalar"] = "scalar"


class Run(Config):
    name: str = "demo"
    ppo: PPO = PPO()
    critic: Annotated[Quantile | Scalar, Field(discriminator="kind")] = Quantile()
    mode: Literal["off", "mean_only"] = "off"
    temper: Mood = Mood.CALM
    limit: float | None = None
    low: float = 0.0
    high: float = 1.0
    steps: int = 10
    twin: bool = True
    levels: tuple[float, ...] = (0.0, 0.5)
    out: Path = Path("runs")
    day: datetime.date | None = None

    @model_validator(mode="after")
    def _low_lies_below_high(self) -> Self:
        if self.low >= self.high:
            raise ValueError("`low` must lie below `high`")
        return self

    @field_validator("steps")
    @classmethod
    def _even(cls, steps: int) -> int:
        if steps == 13:
            raise RangeError(wrong="`steps` must bring luck", found="13", remedy="Pass 12.")
        if steps % 2:
            raise ValueError("it must be even")
        return steps


DEFAULT_TOML = """\
name = "demo"
mode = "off"
temper = "calm"
low = 0.0
high = 1.0
steps = 10
twin = true
levels = [0.0, 0.5]
out = "runs"

[ppo]
clip_range = 0.2
environments = 8
minibatches = 4

[critic]
kind = "quantile"
n = 32
"""

DEFAULT_JSON = (
    '{"critic":{"kind":"quantile","n":32},"day":null,"high":1.0,"levels":[0.0,0.5],"limit":null,'
    '"low":0.0,"mode":"off","name":"demo","out":"runs",'
    '"ppo":{"clip_range":0.2,"environments":8,"minibatches":4},'
    '"steps":10,"temper":"calm","twin":true}'
)


def refusal(data: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        Run.from_mapping(data)
    return str(caught.value)


def test_defaults_are_written_and_hashed_the_same_everywhere():
    assert Run().to_toml() == DEFAULT_TOML
    assert Run().config_hash() == hashlib.sha256(DEFAULT_JSON.encode()).hexdigest()


def test_the_hash_depends_on_values_and_on_nothing_else():
    run = Run.from_mapping({"low": 0, "ppo": {"environments": 8.0}})
    assert run == Run()
    assert run.config_hash() == Run().config_hash()
    assert Run(steps=12).config_hash() != Run().config_hash()
    assert Run(ppo=PPO(clip_range=0.3)).config_hash() != Run().config_hash()


configs = st.builds(
    Run,
    name=st.text(st.characters(codec="utf-8"), max_size=10),
    ppo=st.builds(
        PPO,
        clip_range=st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
        environments=st.integers(1, 50).map(lambda n: 4 * n),
    ),
    critic=st.builds(Quantile, n=st.integers(1, 100)) | st.builds(Scalar),
    mode=st.sampled_from(["off", "mean_only"]),
    temper=st.sampled_from(Mood),
    limit=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    low=st.floats(-1e300, 0.0),
    steps=st.integers(-(10**6), 10**6).map(lambda n: 2 * n),
    twin=st.booleans(),
    levels=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4).map(tuple),
    day=st.none() | st.dates(),
)


@given(config=configs)
def test_toml_gives_back_an_equal_configuration(config):
    back = Run.from_mapping(tomllib.loads(config.to_toml()))
    assert back == config
    assert back.config_hash() == config.config_hash()
    assert back.to_toml() == config.to_toml()


def test_a_file_is_loaded_with_overrides_on_top(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\nlevels = [1, 2]\n[ppo]\nclip_range = 0.3\n')
    overrides = ["ppo.clip_range=0.1", "steps=1e3", "day=2024-02-29", "out=/data", "temper=wild"]
    config = Run.load(path, overrides)
    assert config == Run(
        name="x",
        levels=(1.0, 2.0),
        ppo=PPO(clip_range=0.1),
        steps=1000,
        day=datetime.date(2024, 2, 29),
        out=Path("/data"),
        temper=Mood.WILD,
    )
    assert type(config.levels[0]) is float
    assert type(config.steps) is int


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"ppo": {"clip_range": 2.0}},
            "`ppo.clip_range` must be less than 1; found 2.0. The default is 0.2. [config-value]",
        ),
        (
            {"ppo": {"clip_rnge": 0.1}},
            "`ppo.clip_rnge` must be the name of a setting; found 0.1. "
            "Did you mean `ppo.clip_range`? [config-unknown-key]",
        ),
        (
            {"clip_range": 0.1},
            "`clip_range` must be the name of a setting; found 0.1. "
            "Did you mean `ppo.clip_range`? [config-unknown-key]",
        ),
        (
            {"clip_rage": 0.1},
            "`clip_rage` must be the name of a setting; found 0.1. "
            "Did you mean `ppo.clip_range`? [config-unknown-key]",
        ),
        (
            {"ppo": {"twin": False}},
            "`ppo.twin` must be the name of a setting; found false. "
            "Did you mean `twin`? [config-unknown-key]",
        ),
        (
            {"critic": {"kind": "scalar", "zzz": "y"}},
            '`critic.zzz` must be the name of a setting; found "y". '
            "The settings here are `kind`, `n`. [config-unknown-key]",
        ),
        (
            {"mode": "mean_olny"},
            '`mode` must be `off` or `mean_only`; found "mean_olny". '
            "Did you mean `mean_only`? [config-value]",
        ),
        (
            {"temper": "clam"},
            '`temper` must be `calm` or `wild`; found "clam". Did you mean `calm`? [config-value]',
        ),
        (
            {"critic": {"kind": "quantil"}},
            '`critic.kind` must be one of `quantile`, `scalar`; found "quantil". '
            "Did you mean `quantile`? [config-value]",
        ),
        (
            {"critic": {"kind": "zzz"}},
            '`critic.kind` must be one of `quantile`, `scalar`; found "zzz". '
            "Choose one of those names. [config-value]",
        ),
        (
            {"critic": {"n": 3}},
            "`critic.kind` must be given; found nothing. Set `critic.kind`. [config-value]",
        ),
        (
            {"critic": {"kind": "quantile", "n": 0}},
            "`critic.n` must be greater than 0; found 0. The default is 32. [config-value]",
        ),
        ({"twin": 1}, "`twin` must be a boolean; found 1. The default is true. [config-value]"),
        (
            {"twin": "yes"},
            '`twin` must be a boolean; found "yes". The default is true. [config-value]',
        ),
        ({"low": True}, "`low` must be a number; found true. The default is 0.0. [config-value]"),
        (
            {"low": "0.1"},
            '`low` must be a number; found "0.1". The default is 0.0. [config-value]',
        ),
        (
            {"limit": "x"},
            '`limit` must be a number; found "x". The default is nothing. [config-value]',
        ),
        (
            {"levels": [0.0, True]},
            "`levels.1` must be a number; found true. Change `levels.1`. [config-value]",
        ),
        (
            {"steps": True},
            "`steps` must be a whole number; found true. The default is 10. [config-value]",
        ),
        (
            {"steps": 1.5},
            "`steps` must be a valid integer, got a number with a fractional part; found 1.5. "
            "The default is 10. [config-value]",
        ),
        (
            {"low": float("nan")},
            "`low` must be a finite number; found nan. The default is 0.0. [config-value]",
        ),
        (
            {"high": float("inf")},
            "`high` must be a finite number; found inf. The default is 1.0. [config-value]",
        ),
        (
            {"levels": [1.0, float("-inf")]},
            "`levels.1` must be a finite number; found -inf. Change `levels.1`. [config-value]",
        ),
        ({"steps": 3}, "`steps`: it must be even; found 3. Change `steps`. [config-value]"),
        (
            {"steps": 13},
            "`steps`: `steps` must bring luck; found 13. Pass 12. [config-value]",
        ),
        (
            {"low": 2.0},
            "`low` must lie below `high`; found {low = 2.0}. "
            "Change the settings that it names. [config-inconsistent]",
        ),
        (
            {"ppo": {"environments": 10}},
            "`minibatches` must divide `environments`; found environments=10, minibatches=4. "
            "Use a power of two for both. [config-inconsistent]",
        ),
        (
            {"zzz": 1, "qqq": 2},
            "every setting must be known and have a value that fits; found 2 problems. "
            "(1) `zzz` must be the name of a setting; found 1. "
            "The settings here are `name`, `ppo`, `critic`, `mode`, `temper`, `limit`, `low`, "
            "`high`, `steps`, `twin`, `levels`, `out`, `day`. "
            "(2) `qqq` must be the name of a setting; found 2. "
            "The settings here are `name`, `ppo`, `critic`, `mode`, `temper`, `limit`, `low`, "
            "`high`, `steps`, `twin`, `levels`, `out`, `day`. [config-unknown-key]",
        ),
        (
            {"ppo": {"clip_range": 0, "environments": -1}, "nmae": "x"},
            "every setting must be known and have a value that fits; found 3 problems. "
            "(1) `ppo.clip_range` must be greater than 0; found 0. The default is 0.2. "
            "(2) `ppo.environments` must be greater than 0; found -1. The default is 8. "
            '(3) `nmae` must be the name of a setting; found "x". Did you mean `name`? '
            "[config-value]",
        ),
    ],
)
def test_a_refusal_says_path_rule_value_and_way_out(data, words):
    assert refusal(data) == words


class Needs(Config):
    path: str
    inner: PPO


class Node(Config):
    label: Annotated[str, Field(max_length=3, pattern="^[a-z]*$")] = "a"
    child: "Node | None" = None
    source: Path | tuple[Path, ...] = ()

    @field_validator("label")
    @classmethod
    def _no_z(cls, label: str) -> str:
        if label == "z":
            raise PydanticCustomError("no_z", "No z, please")
        return label


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"label": "abcd"},
            '`label` must have at most 3 characters; found "abcd". The default is "a". '
            "[config-value]",
        ),
        (
            {"label": "A"},
            '`label` must match pattern `^[a-z]*$`; found "A". The default is "a". [config-value]',
        ),
        (
            {"label": "z"},
            '`label` must pass this rule: No z, please; found "z". The default is "a". '
            "[config-value]",
        ),
        (
            {"child": {"child": {"lable": "x"}}},
            '`child.child.lable` must be the name of a setting; found "x". '
            "Did you mean `label`? [config-unknown-key]",
        ),
        (
            {"source": 3},
            "every setting must be known and have a value that fits; found 2 problems. "
            "(1) `source` must be a path; found 3. The default is []. "
            "(2) `source` must be a list; found 3. The default is []. [config-value]",
        ),
        (
            {"source": ["a", 3]},
            "every setting must be known and have a value that fits; found 2 problems. "
            '(1) `source` must be a path; found ["a", 3]. The default is []. '
            "(2) `source.1` must be a path; found 3. Change `source.1`. [config-value]",
        ),
    ],
)
def test_settings_of_several_types_are_named_as_the_user_wrote_them(data, words):
    with pytest.raises(ConfigError) as caught:
        Node.from_mapping(data)
    assert str(caught.value) == words


@pytest.mark.refusal
def test_something_else_than_a_table_is_refused():
    with pytest.raises(ConfigError) as caught:
        Run.from_mapping([1])
    assert str(caught.value) == (
        "the configuration must be a section of settings; found [1]. "
        "Pass the settings as one table. [config-value]"
    )
    with pytest.raises(ConfigError) as caught:
        Run.from_mapping({"ppo": 3})
    assert str(caught.value) == (
        "`ppo` must be a section of settings; found 3. "
        "The default is {clip_range = 0.2, environments = 8, minibatches = 4}. [config-value]"
    )


@pytest.mark.refusal
def test_what_is_required_must_be_given():
    with pytest.raises(ConfigError) as caught:
        Needs.from_mapping({"inner": {}})
    assert str(caught.value) == (
        "`path` must be given; found nothing. Set it in the file or with `--set path=...`. "
        "[config-value]"
    )


@pytest.mark.refusal
def test_every_way_in_refuses_in_the_same_words():
    words = "`clip_range` must be less than 1; found 3.0. The default is 0.2. [config-value]"
    ways = [
        lambda: PPO(clip_range=3.0),
        lambda: PPO.model_validate({"clip_range": 3.0}),
        lambda: PPO.from_mapping({"clip_range": 3.0}),
        lambda: PPO().replace(clip_range=3.0),
        lambda: PPO().model_copy(update={"clip_range": 3.0}),
        lambda: PPO.model_validate_json('{"clip_range": 3.0}'),
    ]
    for way in ways:
        with pytest.raises(ConfigError) as caught:
            way()
        assert str(caught.value) == words


@pytest.mark.refusal
def test_the_file_is_named_in_its_refusal(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[ppo]\nclip_range = 3\n")
    with pytest.raises(ConfigError) as caught:
        Run.load(path)
    assert str(caught.value) == (
        f"in {path}, `ppo.clip_range` must be less than 1; found 3. The default is 0.2. "
        "[config-value]"
    )
    path.write_text("a = 1\nsteps = 3\n")
    with pytest.raises(ConfigError) as caught:
        Run.load(path)
    assert caught.value.wrong == (
        f"every setting of {path} must be known and have a value that fits"
    )


@pytest.mark.refusal
def test_an_unknown_path_of_an_override_gets_a_suggestion(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        Run.load(path, ["pop.clip_range=0.1"])
    assert str(caught.value) == (
        f"in {path}, `pop` must be the name of a setting; found {{clip_range = 0.1}}. "
        "Did you mean `ppo`? [config-unknown-key]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a = 1\nb = 2\na = 3\n", "Cannot overwrite a value (at line 3, column 6)"),
        (b"[a]\n[a]\n", "Cannot declare ('a',) twice (at line 2, column 3)"),
        (b"name = \xff\n", "the byte 0xff at offset 7"),
        (b"name = abc\n", "Invalid value (at line 1, column 8)"),
        (b"\xef\xbb\xbfname = 1\n", "Invalid statement (at line 1, column 1)"),
        (b"a = " + b"[" * 5000, "values nested too deeply"),
        (b".".join([b"a"] * 33) + b" = 1\n", "a key of more than 32 parts"),
        (b".".join([b"a"] * 400000) + b" = 1\n", "a key of more than 32 parts"),
        (b"[" + b" . ".join([b'"a b"'] * 40) + b"]\n", "a key of more than 32 parts"),
        (b"a" * 10**6, None),
        (b"a = " + b"[" * 40 + b"]" * 40, "values nested more than 32 levels deep"),
    ],
)
def test_a_file_that_is_not_toml_is_refused(data, found, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        Run.load(path)
    found = caught.value.found if found is None else found
    assert str(caught.value) == (
        f"the configuration {path} must be TOML in UTF-8; found {found}. "
        "Correct the file at that place. [config-syntax]"
    )


def test_a_number_of_thousands_of_digits_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("steps = " + "9" * 5000)
    with pytest.raises(ConfigError) as caught:
        Run.load(path)
    assert caught.value.code == "config-syntax"


@pytest.mark.refusal
def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Run.load(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"the configuration {tmp_path}/none.toml must be a file that can be read; "
        "found No such file or directory. Check the path and its permissions. [config-unreadable]"
    )
    with pytest.raises(ConfigError) as caught:
        Run.load(tmp_path)
    assert caught.value.found == "a folder instead of a file"
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError) as caught:
        Run.load(big)
    assert str(caught.value) == (
        f"the configuration {big} must have at most 1048576 bytes; found more. "
        "Check that it is the file you meant. [config-unreadable]"
    )


def test_replacing_reaches_into_sections_and_judges_the_whole():
    config = Run()
    changed = config.replace(**{"ppo.environments": 9, "ppo.minibatches": 3, "steps": 4})
    assert changed == Run(ppo=PPO(environments=9, minibatches=3), steps=4)
    assert config == Run()
    assert config.replace(critic=Scalar()).critic == Scalar()
    assert config.replace(**{"critic.n": 8}).critic == Quantile(n=8)
    assert config.model_copy(update={"low": -1.0}) == Run(low=-1.0)
    assert config.model_copy() == config
    with pytest.raises(ConfigError) as caught:
        config.replace(**{"ppo.environments": 9})
    assert caught.value.code == "config-inconsistent"
    with pytest.raises(ConfigError) as caught:
        config.replace(**{"ppo.clip_range.x": 9})
    assert caught.value.code == "config-override"


@pytest.mark.refusal
def test_a_configuration_is_frozen_and_can_be_a_key():
    config = Run()
    with pytest.raises(ConfigError) as caught:
        config.steps = 4
    assert str(caught.value) == (
        "`steps` must stay as it is, because a configuration is frozen; "
        "found an assignment of 4. Make a copy with `replace(steps=...)`. [config-value]"
    )
    assert {config: 1}[Run()] == 1


def test_docstrings_of_settings_are_their_descriptions():
    assert PPO.model_fields["clip_range"].description == "Half-width of the ratio band."


def test_defaults_are_validated():
    class Wrong(Config):
        share: Annotated[float, Field(le=1.0)] = 2.0

    with pytest.raises(ConfigError) as caught:
        Wrong()
    assert caught.value.wrong == "`share` must be less than or equal to 1"


class Tricky(Config):
    limit: float | None = 0.5
    name: str = ""


@pytest.mark.refusal
def test_what_toml_cannot_give_back_is_not_written():
    with pytest.raises(InvariantError) as caught:
        Tricky(limit=None).to_toml()
    assert str(caught.value) == (
        "the TOML text of a `Tricky` must load to an equal one; "
        'found "name = \\"\\"\\n". Give every setting that may be None the default None. '
        "[config-round-trip]"
    )
    with pytest.raises(InvariantError):
        Tricky(name="\ud800").to_toml()


def edits(name: str) -> set[str]:
    """All names one slip away: a letter lost, doubled, swapped or replaced."""
    lost = {name[:i] + name[i + 1 :] for i in range(len(name))}
    doubled = {name[:i] + name[i] + name[i:] for i in range(len(name))}
    swapped = {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    replaced = {name[:i] + "x" + name[i + 1 :] for i in range(len(name))}
    return lost | doubled | swapped | replaced


@pytest.mark.parametrize("section", ["ppo", "critic", ""])
def test_every_slip_in_every_name_gets_the_right_suggestion(section):
    model = {"ppo": PPO, "critic": Quantile, "": Run}[section]
    for name in model.model_fields:
        if len(name) == 1:
            continue  # one letter leaves nothing to go by
        for slip in edits(name) - set(model.model_fields):
            data = {slip: 0} if not section else {section: {slip: 0}}
            if section == "critic":
                data[section]["kind"] = "quantile"
            full = f"{section}.{name}" if section else name
            with pytest.raises(ConfigError) as caught:
                Run.from_mapping(data)
            assert f"Did you mean `{full}`?" in str(caught.value), slip


class Order(IntEnum):
    FIRST = 1
    SECOND = 2


class Mark(Enum):
    ONE = 1
    WORD = "word"


class Pair(NamedTuple):
    name: str
    rate: float


class Row(TypedDict):
    rate: float


@dataclass(frozen=True)
class Point:
    rate: float = 0.5


Rate = TypeAliasType("Rate", float)


class Inner(Config):
    rates: dict[str, float] = Field(default_factory=dict)


class Outside(BaseModel):
    """Not one of ours: it keeps to pydantic's rules."""

    rate: float = 0.5


class Mixed(Config):
    auto: float | Literal["auto"] = "auto"
    table: dict[str, float] = Field(default_factory=dict)
    mapping: Mapping[str, int | float] = Field(default_factory=dict)
    couple: tuple[str, float] = ("a", 0.5)
    deep: dict[str, list[tuple[str, float | None]]] = Field(default_factory=dict)
    bounded: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    inner: tuple[Inner, ...] = ()
    itself: "Mixed | None" = None
    pair: Pair = Pair("a", 0.5)
    row: Row = Field(default_factory=lambda: Row(rate=0.5))
    point: Point = Point()
    alias: Rate = 0.5
    aliases: tuple[str, Rate] = ("a", 0.5)
    default: float | str = "a"
    metadata: dict[str, float] = Field(default_factory=dict)
    steps: int | Literal["all"] = "all"
    switch: bool | Literal["auto"] = "auto"
    switches: dict[str, bool] = Field(default_factory=dict)
    order: Order = Order.FIRST
    mark: Mark = Mark.ONE
    choice: Literal[1, 2] = 1
    yes: Literal[True, 2] = True
    numbered: dict[int, float] = Field(default_factory=dict)
    outside: Outside = Outside()


PLACES = {
    "auto": lambda value: {"auto": value},
    "table": lambda value: {"table": {"x": value}},
    "mapping": lambda value: {"mapping": {"x": value}},
    "couple": lambda value: {"couple": ["a", value]},
    "deep": lambda value: {"deep": {"x": [["a", value]]}},
    "bounded": lambda value: {"bounded": {"x": value}},
    "inner": lambda value: {"inner": [{"rates": {"x": value}}]},
    "itself": lambda value: {"itself": {"table": {"x": value}}},
    "pair": lambda value: {"pair": ["a", value]},
    "row": lambda value: {"row": {"rate": value}},
    "point": lambda value: {"point": {"rate": value}},
    "alias": lambda value: {"alias": value},
    "aliases": lambda value: {"aliases": ["a", value]},
    "metadata": lambda value: {"metadata": {"x": value}},
    "steps": lambda value: {"steps": value},
    "numbered": lambda value: {"numbered": {"1": value}},
}


@pytest.mark.parametrize("value", [True, "1", b"1", np.True_, torch.tensor(True), "1e3"])
@pytest.mark.parametrize("place", PLACES)
def test_text_and_booleans_stand_for_numbers_nowhere(place, value):
    with pytest.raises(ConfigError) as caught:
        Mixed.from_mapping(PLACES[place](value))
    assert caught.value.code == "config-value"


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1.0), np.int64(1)])
@pytest.mark.parametrize("place", PLACES)
def test_whole_numbers_and_floats_stand_for_each_other_everywhere(place, value):
    whole = Mixed.from_mapping(PLACES[place](1))
    assert Mixed.from_mapping(PLACES[place](value)) == whole
    assert whole != Mixed()


def test_a_whole_float_is_a_whole_number_beside_text():
    config = Mixed(steps=1e6, mapping={"a": 3, "b": 3.0}, numbered={"7": 1})
    assert (config.steps, type(config.steps)) == (1_000_000, int)
    assert {key: type(value) for key, value in config.mapping.items()} == {"a": int, "b": float}
    assert config.numbered == {7: 1.0}  # the keys of a table are text in TOML


@pytest.mark.parametrize(
    "data",
    [
        {"switch": 1},
        {"switch": 1.0},
        {"switch": "true"},
        {"switches": {"x": 1}},
        {"switches": {"x": "yes"}},
        {"order": True},
        {"order": "1"},
        {"mark": True},
        {"choice": True},
        {"yes": 1},
        {"yes": 1.0},
        {"default": True},
    ],
)
def test_nothing_is_taken_for_a_boolean_or_a_choice_that_it_is_not(data):
    with pytest.raises(ConfigError) as caught:
        Mixed.from_mapping(data)
    assert caught.value.code == "config-value"


def test_what_a_union_or_a_choice_holds_is_still_taken():
    data = {"auto": "auto", "switch": True, "order": 2, "mark": "word", "choice": 2.0, "yes": True}
    config = Mixed.from_mapping({**data, "default": "0.1"})
    assert (config.auto, config.switch, config.default) == ("auto", True, "0.1")
    assert (config.order, config.mark, config.choice) == (Order.SECOND, Mark.WORD, 2)
    assert Mixed(order=Order.SECOND, mark=Mark.WORD).mark is Mark.WORD
    assert Mixed.from_mapping(tomllib.loads(config.to_toml())) == config


def test_a_model_of_somebody_else_keeps_to_its_own_rules():
    assert Mixed.from_mapping({"outside": {"rate": "0.25"}}).outside.rate == 0.25
    assert Outside(rate="0.25").rate == 0.25


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"auto": True},
            "every setting must be known and have a value that fits; found 2 problems. "
            '(1) `auto` must be a number; found true. The default is "auto". '
            '(2) `auto` must be `auto`; found true. The default is "auto". [config-value]',
        ),
        (
            {"table": {"x": "0.1"}},
            '`table.x` must be a number; found "0.1". Change `table.x`. [config-value]',
        ),
        (
            {"couple": ["a", True]},
            "`couple.1` must be a number; found true. Change `couple.1`. [config-value]",
        ),
        ({"order": "1"}, '`order` must be 1 or 2; found "1". The default is 1. [config-value]'),
        ({"choice": True}, "`choice` must be 1 or 2; found true. The default is 1. [config-value]"),
    ],
)
def test_a_conversion_is_refused_at_the_place_where_it_was_requested(data, words):
    with pytest.raises(ConfigError) as caught:
        Mixed.from_mapping(data)
    assert str(caught.value) == words
