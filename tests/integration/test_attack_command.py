"""`stormsail attack`: one table, files that a report takes, rows that are not run again."""

import json

import pytest

from attack_lab import subject
from command_lab import forked
from stormsail import __version__

FEW = ("--episodes", 4, "--alpha", 0.5, "--epsilons", "0,0.3")


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """Folder of an agent that names its task."""
    _, agent, _ = subject("CartPole-v1")
    agent.binding.values["task"] = "CartPole-v1"
    path = tmp_path_factory.mktemp("agents") / "agent"
    agent.save(path)
    return path


def test_the_table_fits_and_finished_attacks_are_not_run_again(agent, tmp_path):
    rows, chart = tmp_path / "rows.jsonl", tmp_path / "curve.svg"
    options = (*FEW, "--rows", rows, "--attacks", "random,mad,critic")
    first = forked("attack", agent, *options, "--json-out", tmp_path / "a.json", "--chart", chart)
    assert first.returncode == 0, first.stderr
    assert max(len(line) for line in first.stdout.splitlines()) <= 80
    lines = rows.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["rows"][0]["attack"] for line in lines] == [
        "clean", "random", "mad", "critic",
    ]  # fmt: skip
    assert chart.read_text().count("<polyline") == 6
    rows.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])  # killed while it wrote
    again = forked(
        "attack", agent, *options, "--json-out", tmp_path / "b.json", "--out", tmp_path / "o"
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("mean return") == 1
    assert rows.read_bytes() == b"".join(lines)
    document, second = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert (document.pop("out"), second.pop("out")) == (None, str(tmp_path / "o"))
    assert document == second
    assert (document.pop("verb"), document.pop("version")) == ("attack", __version__)
    assert [point["attack"] for point in document["points"]] == ["clean", "random", "mad", "critic"]
    assert document["points"][0]["mean_change"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert json.loads((tmp_path / "o" / "attack.json").read_text()) == document


def test_a_learned_adversary_is_trained_and_repeats_itself(agent, tmp_path):
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file in files:
        done = forked(
            "attack",
            agent,
            *FEW,
            "--attacks",
            "learned",
            "--adversary-steps",
            64,
            "--json-out",
            file,
        )
        assert done.returncode == 0, done.stderr
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilons", "-0.1"), "radii must be finite numbers of at least 0"),
        (("--epsilons", "much"), "`--epsilons` must be numbers with commas between them"),
        (("--epsilons", "0"), "one of them positive"),
        (("--attacks", "madd"), "an attack must be one of random, mad, critic, pgd, learned"),
        (("--alpha", "0"), "`--alpha` must be above 0 and at most 1"),
        (("--features", "nothing"), "a feature to forge must be a column"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(agent, options, words):
    refused = forked("attack", agent, *options)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.startswith("stormsail: ")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.refusal
def test_a_missing_agent_and_one_of_unknown_task_are_refused(tmp_path):
    missing = forked("attack", tmp_path / "none")
    assert missing.returncode == 2
    assert "must be a run with an agent in `best`; found no such folder" in missing.stderr
    _, agent, _ = subject("CartPole-v1")
    agent.save(tmp_path / "agent")
    unknown = forked("attack", tmp_path / "agent")
    assert unknown.returncode == 2
    assert "Pass `--config`" in unknown.stderr
