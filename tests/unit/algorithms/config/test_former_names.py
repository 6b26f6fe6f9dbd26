"""Settings that were renamed are accepted under their former names, and written under the new."""

from pathlib import Path

import pytest

from stormsail.algorithms import TrainConfig
from stormsail.algorithms.config import BcConfig
from stormsail.algorithms.config.learning import FORMER_NAMES
from stormsail.algorithms.run.folder import open_run
from stormsail.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
OLD = "[bc]\ncql_alpha = 0.25\ncql_beta = 2.0\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text(OLD)
    return path


def test_a_file_with_former_names_is_the_same_configuration(file, tmp_path):
    new = tmp_path / "new.toml"
    new.write_text("[bc]\nawr_coef = 0.25\nawr_temperature = 2.0\n")
    assert TrainConfig.load(file) == TrainConfig.load(new)
    assert TrainConfig.load(file).config_hash() == TrainConfig.load(new).config_hash()
    assert TrainConfig.load(file).bc.awr_coef == 0.25
    assert TrainConfig.load(file).bc.awr_temperature == 2.0


def test_overrides_may_use_either_name(file, tmp_path):
    assert TrainConfig.load(file, ["bc.cql_alpha=0.5"]).bc.awr_coef == 0.5
    (tmp_path / "empty.toml").write_text("")
    config = TrainConfig.load(tmp_path / "empty.toml", ["bc.cql_beta=3.0", "bc.awr_coef=0.1"])
    assert (config.bc.awr_coef, config.bc.awr_temperature) == (0.1, 3.0)


def test_the_constructor_and_tables_accept_former_names():
    assert BcConfig(cql_alpha=0.25) == BcConfig(awr_coef=0.25)
    assert TrainConfig(bc={"cql_beta": 2.0}).bc.awr_temperature == 2.0
    table = {"bc": {"cql_alpha": 0.25}}
    assert TrainConfig.from_mapping(table).bc.awr_coef == 0.25
    assert table == {"bc": {"cql_alpha": 0.25}}  # what is given stays as it is


def test_a_setting_given_under_both_names_is_refused():
    for given in ({"cql_alpha": 0.1, "awr_coef": 0.1}, {"cql_beta": 1.0, "awr_temperature": 2.0}):
        former, name = given
        with pytest.raises(ConfigError) as caught:
            TrainConfig.from_mapping({"bc": given})
        assert caught.value.code == "config-inconsistent"
        assert caught.value.wrong == f"`bc`: `{name}` must be given once, not also as `{former}`"


def test_a_refusal_names_the_setting_by_its_new_name():
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_mapping({"bc": {"cql_alpha": -1.0}})
    assert caught.value.wrong.startswith("`bc.awr_coef` must be")
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_mapping({"bc": {"awr_coeff": 1.0}})
    assert caught.value.remedy == "Did you mean `bc.awr_coef`?"


def test_a_run_writes_the_new_names(file, tmp_path):
    config = TrainConfig.load(file)
    with open_run(tmp_path / "run", config, {"task": "market"}) as folder:
        folder.begin()
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "awr_coef = 0.25" in text
    assert "awr_temperature = 2.0" in text
    assert not any(former in text for former in FORMER_NAMES)
    with open_run(tmp_path / "run", TrainConfig.load(file), {"task": "market"}):
        pass  # the same settings, so the same run


def test_the_page_of_settings_mentions_every_former_name():
    page = (ROOT / "docs" / "config.md").read_text()
    for former, name in FORMER_NAMES.items():
        (row,) = [line for line in page.splitlines() if f"`bc.{name}`" in line]
        assert f"`{former}`" in row
