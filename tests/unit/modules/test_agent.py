"""The one object that decides, and the file it lives in."""

import dataclasses
import json
import math

import pytest
import torch

from stormsail.core.errors import ArtifactError, ConfigError, ShapeError
from stormsail.core.files.artifact import Contents, read_artifact, write_artifact
from stormsail.core.task import ContinuousActions, DiscreteActions
from stormsail.functional import statistics
from stormsail.modules import Agent, AgentSpec, CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.agent import ActionSpec

NAMES = ("price", "volume", "position")
B = 4
CONTINUOUS = ContinuousActions((-1.0, 0.0), (1.0, 0.3))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def spec(*, actions=None, critic=None, **network):
    shape = {"encoder_sizes": (5,), "lstm_hidden_size": 4, "head_sizes": (5,)}
    return AgentSpec(
        observation_names=NAMES,
        unscaled=("position",),
        actions=ActionSpec.of(actions or DiscreteActions(3)),
        network=NetworkConfig(**{**shape, **network}),
        critic=critic or CriticConfig(num_quantiles=5),
    )


def build(described=None, *, seed=0, binding=None):
    """Return an agent with statistics, as after some training."""
    agent = Agent(described or spec(), seeded(seed), binding=binding)
    agent.observation_scale.commit(statistics.moments(3.0 + 2.0 * observations(100, seed=9)))
    agent.return_scale.mean.fill_(0.7)
    agent.return_scale.std.fill_(1.9)
    return agent


def observations(rows=B, *, seed=1):
    return torch.randn(rows, len(NAMES), generator=seeded(seed))


KINDS = {
    "discrete": spec(),
    "continuous": spec(actions=CONTINUOUS, memory="gru", learn_initial_state=True),
    "beta": spec(actions=CONTINUOUS).replace(**{"policy.distribution": "beta"}),
    "joined columns": spec().replace(after_memory=("position", "price")),
    "own memory": spec(enable_critic_lstm=True, num_layers=2),
    "no memory": spec(memory="none"),
    "monotone": spec(critic=CriticConfig(num_quantiles=5, monotone_quantiles=True)),
    "categorical": spec(critic=CriticConfig(kind="categorical", num_atoms=7)),
    "scalar": spec(critic=CriticConfig(kind="scalar", use_twin_critics=False)),
}
all_kinds = pytest.mark.parametrize("described", KINDS.values(), ids=KINDS)


def same(one, other):
    return all(map(torch.equal, one, other))


@all_kinds
def test_a_deterministic_decision_is_the_same_twice(described):
    agent = build(described)
    memory = agent.initial_memory(B)
    first = agent.decide(observations(), memory, deterministic=True)
    torch.manual_seed(99)
    assert same(first, agent.decide(observations(), memory, deterministic=True))
    assert not any(part.requires_grad for part in first)
    assert torch.equal(memory, agent.initial_memory(B))


@pytest.mark.spec("M50")
@all_kinds
def test_a_deterministic_decision_is_the_mode_in_every_mode(described):
    """The most likely action, and the same whether the module is set to train or to evaluate."""
    agent = build(described)
    memory = agent.initial_memory(B)
    first = agent.train().decide(observations(), memory, deterministic=True)
    assert torch.equal(first.raw_action, agent.network.head.mode(first.parameters))
    assert same(first, agent.eval().decide(observations(), memory, deterministic=True))


@all_kinds
def test_a_drawn_decision_follows_from_its_generator(described):
    agent = build(described)
    x, memory = observations(64), agent.initial_memory(64)
    first = agent.decide(x, memory, deterministic=False, generator=seeded(3))
    assert same(first, agent.decide(x, memory, deterministic=False, generator=seeded(3)))
    other = agent.decide(x, memory, deterministic=False, generator=seeded(4))
    assert not torch.equal(first.raw_action, other.raw_action)
    assert torch.equal(first.parameters, other.parameters)


@all_kinds
def test_a_decision_says_what_it_knows(described):
    agent = build(described)
    decision = agent.decide(
        observations(), agent.initial_memory(B), deterministic=False, generator=seeded()
    )
    head, critic = agent.network.head, agent.network.critic
    assert torch.equal(decision.action, head.to_task(decision.raw_action))
    wanted = head.log_prob(decision.parameters, decision.raw_action)
    assert torch.equal(decision.log_prob, wanted)
    assert decision.log_prob.shape == decision.value.shape == (B,)
    torch.testing.assert_close(decision.value, 1.9 * critic.value(decision.predicted) + 0.7)
    distribution = critic.distribution(decision.predicted)
    if described.critic.kind == "categorical":
        torch.testing.assert_close(decision.distribution, distribution)
        means = (decision.distribution * agent.atoms).sum(-1)
        torch.testing.assert_close(means, decision.value)
    else:
        torch.testing.assert_close(decision.distribution, 1.9 * distribution + 0.7)
        torch.testing.assert_close(decision.distribution.mean(-1), decision.value)


def test_what_was_seen_before_matters():
    agent = build()
    x, memory = observations(), agent.initial_memory(B)
    first = agent.decide(x, memory, deterministic=True)
    second = agent.decide(x, first.memory, deterministic=True)
    assert not torch.allclose(first.value, second.value)
    again = agent.decide(x, agent.initial_memory(B), deterministic=True)
    assert torch.equal(first.value, again.value)


def test_each_environment_decides_for_itself():
    agent = build()
    x, memory = observations(), agent.initial_memory(B)
    whole = agent.decide(x, memory, deterministic=True)
    alone = agent.decide(x[2:3], memory[2:3], deterministic=True)
    torch.testing.assert_close(alone.value[0], whole.value[2], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(alone.parameters[0], whole.parameters[2], rtol=1e-6, atol=1e-6)


def test_an_unknown_number_spoils_its_own_environment_and_no_other():
    # Nothing is read on the way to a decision, so nothing is refused: a NaN observation gives a
    # NaN value, log probability and memory, which the caller checks before acting. The action
    # alone does not show it: the mode of unknown logits is class 0.
    agent = build()
    x, memory = observations(), agent.initial_memory(B)
    clean = agent.decide(x, memory, deterministic=True)
    x[1, 0] = torch.nan
    broken = agent.decide(x, memory, deterministic=True)
    for name in ("value", "log_prob", "distribution", "memory"):
        assert getattr(broken, name)[1].isnan().all()
        assert torch.equal(getattr(broken, name)[[0, 2, 3]], getattr(clean, name)[[0, 2, 3]])
    assert int(broken.action[1]) == 0


def test_unscaled_columns_reach_the_network_as_they_are():
    agent = build()
    x = observations() * 1e3
    assert torch.equal(agent.normalised(x)[:, 2], x[:, 2])
    assert agent.normalised(x)[:, :2].abs().max() == 10.0


@pytest.mark.refusal
def test_other_columns_are_refused():
    agent = build()
    with pytest.raises(ShapeError) as caught:
        agent.decide(torch.zeros(B, 4), agent.initial_memory(B), deterministic=True)
    assert str(caught.value) == (
        "an observation must have the 3 columns of the agent's training; found observation "
        "(4, 4). Compute the same features in the same order. [shape-mismatch]"
    )
    with pytest.raises(ShapeError):
        agent.decide(observations(), agent.initial_memory(B + 1), deterministic=True)
    with pytest.raises(ShapeError):  # one environment without its axis
        agent.decide(observations()[0], agent.initial_memory(1), deterministic=True)


@pytest.mark.refusal
def test_drawing_without_a_generator_is_refused():
    agent = build()
    with pytest.raises(ConfigError) as caught:
        agent.decide(observations(), agent.initial_memory(B), deterministic=False)
    assert str(caught.value) == (
        "a decision that is drawn must have a generator; found none. Pass `generator`, or "
        "`deterministic=True`. [config-inconsistent]"
    )


def test_the_same_seed_gives_the_same_agent():
    one, again, other = build(seed=3), build(seed=3), build(seed=4)
    assert same(one.state_dict().values(), again.state_dict().values())
    assert not same(one.state_dict().values(), other.state_dict().values())


@all_kinds
def test_saving_and_loading_keeps_every_bit(described, tmp_path):
    agent = build(described, seed=5, binding={"interval": "1h", "fees": [0.001, 0.0005]})
    agent.network.critic.rescale(*(torch.tensor(v).double() for v in (0.0, 1.0, 0.7, 1.9)))
    agent.save(tmp_path / "agent")
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    loaded = Agent.load(tmp_path / "agent")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert loaded.spec == described
    assert loaded.binding == agent.binding
    mine, saved = agent.state_dict(), loaded.state_dict()
    assert list(mine) == list(saved)
    for name, value in mine.items():
        assert value.dtype == saved[name].dtype
        assert value.device == saved[name].device
        assert torch.equal(value, saved[name])
    x, memory = observations(), agent.initial_memory(B)
    first = agent.decide(x, memory, deterministic=False, generator=seeded(1))
    second = loaded.decide(x, loaded.initial_memory(B), deterministic=False, generator=seeded(1))
    assert same(first, second)
    trainable = {name for name, value in agent.named_parameters() if value.requires_grad}
    assert {name for name, value in loaded.named_parameters() if value.requires_grad} == trainable


def test_an_agent_is_never_overwritten(tmp_path):
    agent = build()
    agent.save(tmp_path / "agent")
    with pytest.raises(ArtifactError) as caught:
        agent.save(tmp_path / "agent")
    assert caught.value.code == "artifact-exists"


@pytest.mark.refusal
def test_another_market_than_that_of_training_is_refused_by_name(tmp_path):
    build(binding={"interval": "1h", "levels": (0.0, 0.5)}).save(tmp_path / "agent")
    binding = Agent.load(tmp_path / "agent").binding
    binding.check(interval="1h", levels=(0.0, 0.5), unknown=3)
    binding.check(interval="1h", levels=[0.0, 0.5])
    with pytest.raises(ConfigError) as caught:
        binding.check(interval="4h", levels=[0.0, 0.5])
    assert str(caught.value) == (
        "`interval` must be what the agent was trained for, 1h; found 4h. Use the data and costs "
        "of its training, or train another agent. [config-inconsistent]"
    )
    with pytest.raises(ConfigError) as caught:
        binding.check(levels=[0.0, 1.0])
    assert "`levels` must be" in str(caught.value)


def test_a_nan_weight_is_neither_saved_nor_loaded(tmp_path):
    agent = build()
    with torch.no_grad():
        agent.network.actor_last.bias[0] = math.nan
    with pytest.raises(ArtifactError) as caught:
        agent.save(tmp_path / "agent")
    assert caught.value.code == "artifact-nonfinite"
    assert not (tmp_path / "agent").exists()


def forged(path, **changes):
    """Write an artifact with valid checksums whose parts do not fit each other."""
    contents = build().contents()
    document = json.loads(json.dumps(contents.documents["agent"]))
    for name, value in changes.get("spec", {}).items():
        place = document
        *sections, last = name.split(".")
        for section in sections:
            place = place[section]
        place[last] = value
    tensors = changes.get("tensors", contents.tensors)
    documents = changes.get("documents", {"agent": document})
    metadata = changes.get("metadata", contents.metadata)
    made = Contents(tensors=tensors, documents=documents, metadata=metadata)
    write_artifact(path, kind=changes.get("kind", "agent"), contents=made)
    return path


def state():
    return {name: value.clone() for name, value in build().state_dict().items()}


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


BIAS = "network.actor_last.bias"
FORGERIES = {
    "no tensors": {"tensors": {}},
    "no description": {"documents": {}},
    "a list as description": {"documents": {"agent": [1, 2]}},
    "no binding": {"metadata": {}},
    "text as binding": {"metadata": {"binding": "1h"}},
    "a tensor is missing": {"tensors": {"model": without(state(), BIAS)}},
    "a tensor too many": {"tensors": {"model": {**state(), "extra": torch.zeros(1)}}},
    "another shape": {"tensors": {"model": {**state(), BIAS: torch.zeros(4)}}},
    "another dtype": {"tensors": {"model": {**state(), BIAS: torch.zeros(3).double()}}},
    "integers": {"tensors": {"model": {**state(), BIAS: torch.zeros(3, dtype=torch.int64)}}},
    "another width": {"spec": {"network.lstm_hidden_size": 5}},
    "a width beyond all memory": {"spec": {"network.lstm_hidden_size": 65_536}},
    "a width beyond all numbers": {"spec": {"network.lstm_hidden_size": 10**12}},
    "layers without end": {"spec": {"network.num_layers": 10**12}},
    "quantiles without end": {"spec": {"critic.num_quantiles": 10**12}},
    "classes without end": {"spec": {"actions.count": 10**12}},
    "no classes": {"spec": {"actions.count": 0}},
    "bounds the wrong way round": {
        "spec": {"actions.kind": "continuous", "actions.low": [1.0], "actions.high": [0.0]}
    },
    "bounds of two lengths": {
        "spec": {"actions.kind": "continuous", "actions.low": [0.0], "actions.high": [1.0, 2.0]}
    },
    "a distribution that cannot draw": {"spec": {"policy.distribution": "beta"}},
    "an unknown setting": {"spec": {"network.dropout": 0.1}},
    "a name of nothing": {"spec": {"unscaled": ["nowhere"]}},
    "no columns": {"spec": {"observation_names": [], "unscaled": []}},
}


@pytest.mark.parametrize("changes", FORGERIES.values(), ids=FORGERIES)
def test_a_file_that_does_not_fit_itself_is_refused(changes, tmp_path):
    path = forged(tmp_path / "agent", **changes)
    with pytest.raises(ArtifactError) as caught:
        Agent.load(path)
    assert caught.value.code == "artifact-document"
    assert f"{path} must describe an agent" in str(caught.value)


def test_monotone_quantiles_of_an_earlier_version_are_refused_and_plain_ones_are_not(tmp_path):
    """They were summed up from the lowest quantile; the same weights would mean another tail."""
    agent = build(KINDS["monotone"], binding={"interval": "1h"})
    contents = agent.contents()
    earlier = dataclasses.replace(contents, metadata={"binding": {"interval": "1h"}})
    write_artifact(tmp_path / "earlier", kind="agent", contents=earlier)
    with pytest.raises(ArtifactError) as caught:
        Agent.load(tmp_path / "earlier")
    assert caught.value.code == "artifact-document"
    assert caught.value.found == (
        "`monotone_quantiles` in the form of an earlier version, whose weights mean other "
        "quantiles here"
    )
    agent.save(tmp_path / "now")
    assert Agent.load(tmp_path / "now").spec == agent.spec
    plain = build()
    assert "monotone_quantiles" not in plain.contents().metadata
    plain.save(tmp_path / "plain")
    assert Agent.load(tmp_path / "plain").spec == plain.spec


def test_another_kind_of_artifact_is_refused(tmp_path):
    with pytest.raises(ArtifactError) as caught:
        Agent.load(forged(tmp_path / "agent", kind="checkpoint"))
    assert caught.value.code == "artifact-kind"


@pytest.mark.parametrize("name", ["model.safetensors", "agent.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_refused(name, damage, tmp_path):
    build().save(tmp_path / "agent")
    file = tmp_path / "agent" / name
    data = bytearray(file.read_bytes())
    file.chmod(0o600)
    if damage == "remove":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(ArtifactError):
        Agent.load(tmp_path / "agent")


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("names", "unscaled", "words"),
    [
        (("a", "a"), (), "`observation_names` must be one or more different names"),
        ((), (), "`observation_names` must be one or more different names"),
        (("a", "b"), ("c",), "`unscaled` must name columns of the agent, not ['c']"),
    ],
)
def test_names_that_mean_nothing_are_refused(names, unscaled, words):
    with pytest.raises(ConfigError) as caught:
        AgentSpec(
            observation_names=names,
            unscaled=unscaled,
            actions=ActionSpec(kind="discrete", count=2),
        )
    assert words in str(caught.value)


@pytest.mark.parametrize("actions", [DiscreteActions(5), CONTINUOUS])
def test_actions_survive_their_description(actions):
    assert ActionSpec.of(actions).actions() == actions


def test_spreads_the_wrong_way_round_are_refused():
    with pytest.raises(ConfigError):
        PolicyConfig(std_min=1.0, std_max=1.0)


@pytest.mark.parametrize("policy", ["greedy", "sampled"])
def test_the_judged_policy_is_in_the_file(policy, tmp_path):
    agent = build()
    assert agent.judged_policy == "greedy"
    agent.judged_policy = policy
    agent.save(tmp_path / "agent")
    assert read_artifact(tmp_path / "agent").metadata["policy"] == policy
    assert Agent.load(tmp_path / "agent").judged_policy == policy


def test_a_file_of_an_earlier_version_was_judged_greedily(tmp_path):
    assert Agent.load(forged(tmp_path / "old", metadata={"binding": {}})).judged_policy == "greedy"


def test_the_quantiles_of_an_earlier_version_are_at_equal_levels(tmp_path):
    """A file that does not name its levels was written when there were no others."""
    agent = build(spec(critic=CriticConfig(num_quantiles=5)))
    contents = agent.contents()
    document = contents.documents["agent"]
    assert document["critic"].pop("levels") is None
    write_artifact(tmp_path / "earlier", kind="agent", contents=contents)
    assert Agent.load(tmp_path / "earlier").levels.tolist() == [0.1, 0.3, 0.5, 0.7, 0.9]
    dense = build(spec(critic=CriticConfig(num_quantiles=5, levels="tail")))
    dense.save(tmp_path / "dense")
    expected = [0.025, *(0.05 + 0.2375 * (i + 0.5) for i in range(4))]
    assert Agent.load(tmp_path / "dense").levels.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.refusal
@pytest.mark.parametrize("policy", ["both", None, 1, ["greedy"]])
def test_a_file_with_another_policy_is_refused(policy, tmp_path):
    with pytest.raises(ArtifactError) as caught:
        Agent.load(forged(tmp_path / "agent", metadata={"binding": {}, "policy": policy}))
    assert caught.value.code == "artifact-document"
    assert f"found the policy {policy!r}." in str(caught.value)


def test_joined_columns_go_to_the_actor_as_they_are_normalised():
    agent = build(spec().replace(after_memory=("position", "price")))
    network = agent.network
    seen = agent.normalised(observations())
    memory, start = agent.initial_memory(B), torch.zeros(1, B, dtype=torch.bool)
    features, _ = network.features(seen[None], memory, start)
    hand = torch.cat((features[0], seen[:, 2:], seen[:, :1]), -1)  # position, then price
    layer = network.actor_body.layers[0]
    assert layer.weight.shape == (5, 4 + 2)
    hidden = (hand @ layer.weight.T + layer.bias).tanh()
    wanted = hidden @ network.actor_last.weight.T + network.actor_last.bias
    made = agent.decide(observations(), memory, deterministic=True)
    torch.testing.assert_close(made.parameters, wanted, rtol=0, atol=1e-7)
    assert torch.equal(seen[:, 2], observations()[:, 2])  # unscaled
    assert not torch.allclose(seen[:, 0], observations()[:, 0])


def test_an_agent_without_joined_columns_has_the_file_of_earlier_versions(tmp_path):
    agent, joined = build(), build(spec().replace(after_memory=("position",)))
    fields = {"observation_names", "unscaled", "images", "actions", "network", "policy", "critic"}
    for made in (agent, joined):
        made.save(tmp_path / str(len(made.spec.after_memory)))
    assert set(read_artifact(tmp_path / "0").documents["agent"]) == fields
    assert Agent.load(tmp_path / "0").spec.after_memory == ()
    assert read_artifact(tmp_path / "1").documents["agent"]["after_memory"] == ["position"]
    assert Agent.load(tmp_path / "1").spec == joined.spec


@pytest.mark.refusal
@pytest.mark.parametrize("names", [("equity",), ("price", "price")])
def test_joined_columns_must_be_different_columns_of_the_agent(names):
    with pytest.raises(ConfigError, match="`after_memory` must name different columns"):
        spec().replace(after_memory=names)
