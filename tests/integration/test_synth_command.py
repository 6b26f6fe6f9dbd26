"""`stormsail synth` as a user meets it."""

import pyarrow.parquet as pq
import pytest

from command_lab import forked, fresh


def run(*arguments):
    return forked("synth", *arguments)


def test_a_world_is_written_and_its_answer_printed(tmp_path):
    store = tmp_path / "data"
    size = ("--store", str(store), "--symbols", "2", "--bars", "50", "--seed", "7")
    size += ("--interval", "4h", "--set", "phi=0.5", "--set", "volatility=0.02")
    result = fresh("synth", "ar1", *size)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        "ar1, seed 7: 50 bars of 4h for AAA/USDT:USDT, BBB/USDT:USDT\n"
        f"wrote 4 files under {store}\n"
        "process: return = 0.5 · last return + Gaussian noise, deviation 0.02\n"
        "simple return a bar: mean 0, deviation 0.02, kurtosis 3\n"
        "known answer: the sign strategy earns 0.00798 a bar before costs, trades 0.667 of equity"
        " and breaks even at a cost of 120 basis points; the best weight without costs is 1667"
        " times the last return\n"
    )
    files = sorted(
        path.relative_to(store).as_posix() for path in store.rglob("*.parquet") if path.is_file()
    )
    assert files == [
        "AAA-USDT_USDT/4h.parquet",
        "AAA-USDT_USDT/funding.parquet",
        "BBB-USDT_USDT/4h.parquet",
        "BBB-USDT_USDT/funding.parquet",
    ]
    assert pq.read_table(store / files[0]).num_rows == 50


def test_the_leak_of_the_oracle_is_written_beside_the_bars(tmp_path):
    result = run("oracle", "--store", str(tmp_path), "--symbols", "1", "--bars", "20")
    assert result.returncode == 0, result.stderr
    features = pq.read_table(tmp_path / "AAA-USDT_USDT" / "features" / "1h.parquet")
    assert features.column_names == ["ts", "leak"]
    assert features.num_rows == 20


def test_worlds_and_settings_are_listed():
    result = run("--list")
    assert result.returncode == 0
    for line in (
        "noise: a martingale: nothing to be learned",
        "  phi = 0.2  φ, correlation of a return with the next; negative is reversal.",
        "every world",
        "  start_price = 100.0  Open of the first bar, in quote currency.",
    ):
        assert line in result.stdout.splitlines()


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("nois",),
            "stormsail: a world must be one of `ar1`, `crash`, `garch_jump`, `noise`, `oracle`,"
            " `regime`; found `nois`. Did you mean `noise`? [unknown-choice]\n",
        ),
        (
            ("crash", "--set", "drifft=0.1"),
            "stormsail: `drifft` must be the name of a setting; found 0.1. Did you mean `drift`?"
            " [config-unknown-key]\n",
        ),
        (
            (),
            "stormsail: the name of a world must be given; found none. Run `stormsail synth --list`"
            " to see them. [missing-argument]\n",
        ),
    ],
)
def test_what_is_not_known_is_refused_in_words(tmp_path, arguments, words):
    result = run(*arguments, "--store", str(tmp_path / "data"))
    assert (result.returncode, result.stdout, result.stderr) == (2, "", words)
    assert not (tmp_path / "data").exists()


@pytest.mark.refusal
def test_an_argument_of_the_verb_is_no_setting(tmp_path):
    result = run("noise", "--set", "seed=3", "--store", str(tmp_path))
    assert result.returncode == 2
    assert "`seed` must be the name of a setting" in result.stderr
