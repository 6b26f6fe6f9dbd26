"""The state of a run as plain data: nothing lost on the way, nothing foreign let in."""

import copy
import math
from collections import namedtuple

import pytest
import torch

from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.checkpoint import (
    floating_state,
    learner_state,
    pack,
    restore_learner,
    unpack,
)
from stormsail.algorithms.run.state_tree import flatten, unflatten
from stormsail.algorithms.run.tasks import agent_spec, binding, make_task
from stormsail.algorithms.update.nonfinite import tensors_of
from stormsail.core.errors import ArtifactError
from stormsail.core.files.artifact import read_artifact, write_artifact
from stormsail.core.generators import Generators
from stormsail.modules import Agent
from training_lab import small

Pair = namedtuple("Pair", "first second")

CONFIG = small(
    "market",
    vgs__enabled=True,
    vgs__warmup_steps=3,
    kl__target_kl=0.001,
    critic__head_steps=2,
    critic__head_batch=4,
)
PARTS = (
    "agent",
    "optimizer",
    "scaler",
    "heads",
    "kl",
    "entropy",
    "returns",
    "risk",
    "advantages",
    "env_state",
    "generators",
    "counters",
)


def learner(config=CONFIG):
    generators = Generators(config.seed)
    task = make_task(config, batch=config.ppo.n_envs)
    agent = Agent(agent_spec(config, task), generators.stream("weights"))
    return Ppo(task, agent, config, generators)


@pytest.fixture(scope="module")
def trained():
    """A learner after three updates, its saved state, and what two more updates make of it."""
    ppo = learner()
    for _ in range(3):
        ppo.update()
    state = unpacked(learner_state(ppo))
    for _ in range(2):
        ppo.update()
    return state, fingerprint(ppo)


def unpacked(state):
    tree, tensors = flatten(state)
    return unflatten(tree, {name: tensor.clone() for name, tensor in tensors.items()})


def fingerprint(ppo):
    return {name: tensor.clone() for name, tensor in tensors_of(learner_state(ppo), "state")}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer__optimizer_class": "AdamW", "ppo__advantage_scale": "slow"},
        {"vgs__statistic": "elementwise_full", "vgs__reference": "absolute"},
        {"critic__kind": "categorical", "critic__v_min": -2.0, "critic__v_max": 2.0},
    ],
)
def test_every_floating_tensor_of_a_checkpoint_is_looked_at(changes):
    """With NaN in all that is looked at, no saved number is left; before it all are finite."""
    own = {"vgs__enabled": True, "critic__head_steps": 2, "critic__head_batch": 4}
    ppo = learner(small("market", **own | changes))
    for _ in range(2):
        ppo.update()
    assert all(bool(tensor.isfinite().all()) for tensor in floating_state(ppo))
    with torch.no_grad():
        for tensor in floating_state(ppo):
            tensor.fill_(math.nan)
    saved = [one for _, one in tensors_of(learner_state(ppo), "") if one.is_floating_point()]
    assert len(saved) > 30
    assert all(bool(one.isnan().all()) for one in saved)


def test_a_tree_holds_every_kind_of_state_and_gives_it_back():
    value = {
        "state": {0: {"step": torch.tensor(3.0)}, 7: {"step": torch.tensor([1, 2])}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "maximize": False}],
        "odd": [math.inf, -math.inf, 1e-300],
        "pair": Pair(torch.zeros(0, 2), "x"),
        "empty": {},
    }
    tree, tensors = flatten(value)
    assert sorted(tensors) == ["pair/first", "state/0/step", "state/7/step"]
    assert tree["table"]["state"] == {
        "numbered": [
            [0, {"table": {"step": {"tensor": "state/0/step"}}}],
            [7, {"table": {"step": {"tensor": "state/7/step"}}}],
        ]
    }
    back = unflatten(tree, tensors)
    assert back["groups"] == value["groups"]
    assert back["odd"] == value["odd"]
    assert back["empty"] == {}
    assert list(back["state"]) == [0, 7]
    assert torch.equal(back["state"][7]["step"], torch.tensor([1, 2]))
    assert type(back["pair"]) is tuple
    assert back["pair"][0].shape == (0, 2)
    assert math.isnan(unflatten(*flatten(math.nan)))
    assert torch.equal(unflatten(*flatten(torch.tensor(2))), torch.tensor(2))


@pytest.mark.parametrize(
    "tree",
    [
        {"tensor": "absent"},
        {"tensor": 3},
        {"tensor": "x", "tuple": []},
        {"float": "1e999"},
        {"tuple": {}},
        {"table": []},
        {"numbered": [["0", 1]]},
        {"numbered": [[0]]},
        {"numbered": [[True, 1]]},
        {"class": "os.system"},
        {},
    ],
)
def test_a_tree_that_no_version_writes_is_refused(tree):
    with pytest.raises(ArtifactError) as caught:
        unflatten([tree, {"tensor": "x"}], {"x": torch.zeros(1)})
    assert caught.value.code == "artifact-document"


@pytest.mark.refusal
def test_a_tensor_that_is_used_twice_or_never_is_refused():
    with pytest.raises(ArtifactError):
        unflatten([{"tensor": "x"}, {"tensor": "x"}], {"x": torch.zeros(1)})
    with pytest.raises(ArtifactError) as caught:
        unflatten([], {"x": torch.zeros(1)})
    assert str(caught.value) == (
        "a saved state must be a tree that this version writes; found the tensor `x`, which stands "
        "nowhere in it. Use another copy of the artifact, or an older generation. "
        "[artifact-document]"
    )


@pytest.mark.refusal
def test_a_state_that_cannot_be_written_down_is_refused():
    with pytest.raises(ArtifactError) as caught:
        flatten({"part": {"inner": object()}})
    assert str(caught.value) == (
        "the state `part/inner` must be made of tables, lists, tensors and plain values; found a "
        "value of the type object. Give the part a state that can be written down. "
        "[artifact-document]"
    )
    with pytest.raises(ArtifactError) as caught:
        flatten({"part": {1: 0, "b": 0}})
    assert caught.value.found == "int, str"


def test_a_restored_learner_computes_what_the_first_one_did(trained):
    state, expected = trained
    ppo = learner()
    restore_learner(ppo, copy.deepcopy(state))
    for _ in range(2):
        ppo.update()
    assert same(fingerprint(ppo), expected)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_state_is_needed(part, trained):
    state, expected = trained
    fresh = unpacked(learner_state(learner()))
    ppo = learner()
    restore_learner(ppo, {**copy.deepcopy(state), part: fresh[part]})
    for _ in range(2):
        ppo.update()
    assert not same(fingerprint(ppo), expected)


@pytest.mark.parametrize("scale", ["slow", "rollout"])
def test_moments_of_earlier_advantages_come_back(scale):
    mode = "previous_stats" if scale == "rollout" else "floor"
    changes = {"ppo.advantage_scale": scale, "ppo.advantage_mode": mode}
    config = CONFIG.replace(**changes)
    first = learner(config)
    for _ in range(3):
        first.update()
    state = unpacked(learner_state(first))
    assert float(state["advantages"][0]) == {"slow": 3.0, "rollout": 1.0}[scale]
    ppo = learner(config)
    assert ppo.advantage_moments is None
    restore_learner(ppo, copy.deepcopy(state))
    for own, saved in zip(ppo.advantage_moments, first.advantage_moments, strict=True):
        assert own.dtype == torch.float64
        assert torch.equal(own, saved)


@pytest.mark.parametrize(
    "saved",
    [
        (torch.zeros(2),) * 3,
        (torch.tensor(1.0),) * 3,
        (torch.tensor(1.0).double(),) * 2,
        (1.0,) * 3,
    ],
    ids=["vectors", "float32", "two", "numbers"],
)
def test_moments_of_another_kind_are_refused(saved, trained):
    with pytest.raises(ArtifactError) as caught:
        restore_learner(learner(), {**copy.deepcopy(trained[0]), "advantages": saved})
    assert caught.value.wrong == "the saved state of `advantages` must be one of this run"


def test_parts_are_all_that_there_are(trained):
    assert set(trained[0]) == set(PARTS)


def test_an_artifact_gives_back_every_bit(trained, tmp_path):
    state, _ = trained
    bound = checkpoint.identity(CONFIG, binding(CONFIG))
    write_artifact(tmp_path / "a", kind="checkpoint", contents=pack(state, CONFIG, bound))
    artifact = read_artifact(tmp_path / "a")
    artifact.require(**bound)
    back = unpack(artifact)
    assert flatten(back)[0] == flatten(state)[0]
    one, other = dict(tensors_of(state, "")), dict(tensors_of(back, ""))
    assert same(one, other)
    assert {tensor.dtype for tensor in other.values()} >= {torch.uint8, torch.float64, torch.bool}
    assert artifact.blobs["config.toml"].decode() == CONFIG.to_toml()


@pytest.mark.refusal
@pytest.mark.parametrize(
    "field",
    ["format", "code_version", "config_hash", "bound_data", "bound_feature_schema", "bound_costs"],
)
def test_a_mismatch_is_refused_by_name(field, trained, tmp_path):
    bound = checkpoint.identity(CONFIG, binding(CONFIG))
    contents = pack(trained[0], CONFIG, {**bound, field: "another"})
    write_artifact(tmp_path / "a", kind="checkpoint", contents=contents)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(tmp_path / "a").require(**bound)
    assert caught.value.code == "artifact-mismatch"
    assert caught.value.wrong == f"`{field}` of {tmp_path / 'a'} must be {bound[field]!r}"
    assert caught.value.found == "'another'"


def test_every_setting_that_is_computed_with_changes_the_hash():
    bound = checkpoint.identity(CONFIG, {})
    for name, value in (("seed", 6), ("ppo.gamma", 0.5), ("checkpoint.every_updates", 3)):
        assert checkpoint.identity(CONFIG.replace(**{name: value}), {}) != bound
    for name in ("keep_last", "keep_every_updates", "disk_limit_mb"):
        assert checkpoint.identity(CONFIG.replace(**{f"checkpoint.{name}": 7}), {}) == bound


def _grown(state):
    entry = state["optimizer"]["state"][0]
    entry["exp_avg"] = torch.zeros(3, 3)


def _renamed(state):
    state["agent"]["other"] = state["agent"].pop("return_scale.mean")


def _beyond(state):
    state["env_state"][0][0].fill_(10**6)


def _foreign_streams(state):
    state["generators"] = Generators(99).state()


WRONG = {
    "agent": _renamed,
    "optimizer": _grown,
    "optimizer number": lambda state: state["optimizer"]["state"].update({99: {}}),
    "optimizer settings": lambda state: state["optimizer"]["param_groups"][0].update(eps=1.0),
    "optimizer kind": lambda state: state.update(optimizer={"state": {}, "param_groups": 3}),
    "scaler": lambda state: state.update(scaler=None),
    "scaler version": lambda state: state["scaler"].update(version=99),
    "scaler reference": lambda state: state["scaler"].update(reference="absolute"),
    "scaler names": lambda state: state["scaler"]["parameters"].popitem(),
    "kl": lambda state: state.update(kl={"beta": "large"}),
    "entropy": lambda state: state.update(entropy=[]),
    "returns": lambda state: state["returns"].update(window="wide"),
    "risk": lambda state: state.update(risk=None),
    "risk version": lambda state: state["risk"].update(version=99),
    "risk window": lambda state: state["risk"].update(window=[1.0, "much"]),
    "counters": lambda state: state["counters"].update(update_count=-1),
    "counters kind": lambda state: state["counters"].update(refusals="many"),
    "counters more": lambda state: state["counters"].update(code="os.system"),
    "advantages": lambda state: state.update(advantages=3),
    "env_state": lambda state: state.update(env_state=()),
    "env_state symbol": _beyond,
    "env_state kind": lambda state: state.update(env_state=(*state["env_state"][:-1], 3)),
    "generators": _foreign_streams,
    "generators kind": lambda state: state.update(generators={"identity": torch.zeros(3)}),
    "missing": lambda state: state.pop("env_state"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_of_something_else_is_refused(name, trained):
    state = copy.deepcopy(trained[0])
    WRONG[name](state)
    with pytest.raises(ArtifactError):
        restore_learner(learner(), state)


def test_a_scaler_from_before_there_were_two_references_is_absolute():
    config = CONFIG.replace(**{"vgs.reference": "absolute"})
    ppo = learner(config)
    ppo.update()
    state = unpacked(learner_state(ppo))
    assert state["scaler"].pop("reference") == "absolute"
    again = learner(config)
    restore_learner(again, state)
    saved = state["scaler"]["parameters"]
    for name, parts in again.pipeline.scaler.state_dict()["parameters"].items():
        assert all(torch.equal(parts[key], saved[name][key]) for key in parts)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["agent", "optimizer", "scaler", "env_state"])
def test_a_number_that_is_not_finite_never_reaches_the_disk(part, value, trained, tmp_path):
    state = copy.deepcopy(trained[0])
    tensors = [one for _, one in tensors_of(state[part], "") if one.is_floating_point()]
    tensors[-1].reshape(-1)[:1] = value
    with pytest.raises(ArtifactError) as caught:
        write_artifact(tmp_path / "a", kind="checkpoint", contents=pack(state, CONFIG, {}))
    assert caught.value.code == "artifact-nonfinite"
    assert not (tmp_path / "a").exists()
