"""Encoder, memory, actor and critics together."""

import pytest
import torch

from stormsail.core.errors import ShapeError
from stormsail.core.task import ContinuousActions, DiscreteActions
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.network import Network

T, B, F = 5, 3, 4
MEMORIES = ("lstm", "gru", "none")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def build(*, seed=0, actions=None, critic=None, after_memory=(), **settings):
    shape = {"encoder_sizes": (8,), "lstm_hidden_size": 6, "head_sizes": (7,)}
    return Network(
        F,
        actions or DiscreteActions(3),
        network=NetworkConfig(**{**shape, **settings}),
        policy=PolicyConfig(),
        critic=critic or CriticConfig(num_quantiles=5),
        generator=seeded(seed),
        after_memory=after_memory,
    ).double()


def observations(*, rows=T, seed=1):
    return torch.randn(rows, B, F, generator=seeded(seed), dtype=torch.float64)


def flags(*places):
    reset = torch.zeros(T, B, dtype=torch.bool)
    for t, b in places:
        reset[t, b] = True
    return reset


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("own", [False, True])
def test_shapes(memory, own):
    network = build(memory=memory, num_layers=2, enable_critic_lstm=own)
    state = network.initial_memory(B)
    output = network(observations(), state, flags((2, 1)))
    layers, parts = {"lstm": (2, 2), "gru": (2, 1), "none": (0, 1)}[memory]
    assert state.shape == (B, layers * (1 + own), parts, 8 if memory == "none" else 6)
    assert output.actor.shape == (T, B, 3)
    assert output.critic.shape == (T, B, 2, 5)
    assert output.memory.shape == state.shape


def test_a_continuous_actor_gives_two_numbers_a_dimension():
    network = build(actions=ContinuousActions((0.0, 0.0), (1.0, 2.0)))
    assert network(observations(), network.initial_memory(B), flags()).actor.shape == (T, B, 4)


def test_a_network_without_layers_still_works():
    network = build(encoder_sizes=(), head_sizes=())
    output = network(observations(), network.initial_memory(B), flags())
    assert output.actor.shape == (T, B, 3)
    assert network.trunk.encoder.width == F


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("memory", MEMORIES)
def test_playing_row_by_row_is_learning_in_one_piece(memory, own):
    network = build(memory=memory, enable_critic_lstm=own, learn_initial_state=True)
    x, reset = observations(), flags((0, 0), (2, 1), (4, 2))
    state = network.initial_memory(B) + 0.2
    whole = network(x, state, reset)
    for t in range(T):
        row = network(x[t : t + 1], state, reset[t : t + 1])
        torch.testing.assert_close(row.actor[0], whole.actor[t], rtol=0, atol=1e-13)
        torch.testing.assert_close(row.critic[0], whole.critic[t], rtol=0, atol=1e-13)
        state = row.memory
    torch.testing.assert_close(state, whole.memory, rtol=0, atol=1e-13)


@pytest.mark.parametrize("own", [False, True])
def test_the_features_of_the_critics_are_those_that_forward_gives_them(own):
    network = build(enable_critic_lstm=own)
    x, reset = observations(), flags((0, 0), (2, 1))
    state = torch.randn(network.initial_memory(B).shape, generator=seeded(3), dtype=torch.float64)
    features = network.critic_features(x, state, reset)
    assert torch.equal(network.critic(features), network(x, state, reset).critic)


def touched(network, part):
    """Return the modules whose weights get a gradient from one output."""
    output = network(observations(), network.initial_memory(B), flags((2, 1)))
    network.zero_grad()
    (output.actor if part == "actor" else output.critic).square().sum().backward()
    reached = (name for name, value in network.named_parameters() if _is_moved(value))
    return {name.split(".")[0] for name in reached}


def _is_moved(parameter):
    return parameter.grad is not None and bool(parameter.grad.any())


def test_gradients_reach_what_they_should():
    shared, own = build(), build(enable_critic_lstm=True)
    assert touched(shared, "actor") == {"trunk", "actor_body", "actor_last"}
    assert touched(shared, "critic") == {"trunk", "critic"}
    assert touched(own, "actor") == {"trunk", "actor_body", "actor_last"}
    assert touched(own, "critic") == {"critic_trunk", "critic"}


@pytest.mark.spec("T-L2", "S1-L1")
def test_a_reset_reaches_the_memory_of_actor_and_critics():
    network = build(enable_critic_lstm=True, learn_initial_state=True)
    for trunk in (network.trunk, network.critic_trunk):
        trunk.memory.initial.data.normal_(generator=seeded(7))
    x, given = observations(rows=1), torch.full_like(network.initial_memory(B), 0.9)
    reset = torch.tensor([[False, True, False]])
    output = network(x, given, reset)
    fresh = network(x, network.initial_memory(B), torch.zeros_like(reset))
    kept = network(x, given, torch.zeros_like(reset))
    for name in ("actor", "critic"):
        mine, begun, carried = (getattr(o, name)[0] for o in (output, fresh, kept))
        torch.testing.assert_close(mine[1], begun[1], rtol=0, atol=1e-14)
        assert torch.equal(mine[[0, 2]], carried[[0, 2]])
        assert not torch.allclose(mine[1], carried[1])
    torch.testing.assert_close(output.memory[1], fresh.memory[1], rtol=0, atol=1e-14)
    assert torch.equal(output.memory[[0, 2]], kept.memory[[0, 2]])


def test_the_first_policy_is_nearly_uniform():
    network = build()
    logits = network(10 * observations(), network.initial_memory(B), flags()).actor
    torch.testing.assert_close(
        logits.softmax(-1), torch.full((T, B, 3), 1 / 3).double(), atol=0.02, rtol=0
    )
    weight = network.actor_last.weight
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(weight @ weight.t(), 1e-4 * eye, rtol=0, atol=1e-9)


def test_the_same_seed_gives_the_same_weights_whatever_else_was_drawn():
    torch.manual_seed(1)
    one = build(seed=3, enable_critic_lstm=True).state_dict()
    torch.manual_seed(2)
    again = build(seed=3, enable_critic_lstm=True).state_dict()
    other = build(seed=4, enable_critic_lstm=True).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    changed = {name for name in one if not torch.equal(one[name], other[name])}
    assert changed == {name for name in one if "weight" in name}
    assert not torch.equal(
        one["trunk.memory.hidden_weights.0"], one["critic_trunk.memory.hidden_weights.0"]
    )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("extra", [-1, 1])
def test_a_memory_of_another_depth_is_refused(own, extra):
    network = build(num_layers=2, enable_critic_lstm=own)
    layers = 2 * (1 + own) + extra
    with pytest.raises(ShapeError):
        network(observations(), torch.zeros(B, layers, 2, 6).double(), flags())


@pytest.mark.parametrize("memory", MEMORIES)
def test_under_autocast_what_it_says_is_not_rounded_to_eight_bits(memory):
    # Drawn in bfloat16, a class of probability .0017 comes up four times too rarely.
    network = build(memory=memory).float()
    x, state = observations().float(), network.initial_memory(B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(x, state, flags((2, 1)))
        (output.actor.sum() + output.critic.sum()).backward()
    assert output.actor.dtype == output.critic.dtype == output.memory.dtype == torch.float32
    exact = network(x, state, flags((2, 1)))
    torch.testing.assert_close(output.critic, exact.critic, rtol=0, atol=0.05)
    assert all(value.grad.isfinite().all() for value in network.parameters())


# --- columns that are joined behind the memory


def by_hand(network, features, account):
    """Return the actor's outputs from its weights."""
    x = torch.cat((features, account), -1)
    for layer in network.actor_body.layers:
        x = (x @ layer.weight.T + layer.bias).tanh()
    return x @ network.actor_last.weight.T + network.actor_last.bias


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("sizes", [(7,), ()])
def test_joined_columns_meet_the_memory_in_front_of_the_actor(memory, own, sizes):
    network = build(
        memory=memory, enable_critic_lstm=own, head_sizes=sizes, after_memory=(3, 1)
    )  # fmt: skip
    x, state, reset = observations(), network.initial_memory(B), flags((2, 1))
    output = network(x, state, reset)
    features, after = network.features(x, state, reset)
    width = 8 if memory == "none" else 6
    assert features.shape == (T, B, width)
    layers = network.trunk.memory.layers
    assert torch.equal(after, output.memory[:, :layers])
    assert torch.equal(network.account(x), x[..., [3, 1]])
    hand = by_hand(network, features, x[..., [3, 1]])
    torch.testing.assert_close(output.actor, hand, rtol=0, atol=1e-14)
    assert torch.equal(network.actor(features, network.account(x)), output.actor)


def test_another_account_reaches_the_actor_through_the_joined_columns_only():
    network = build(after_memory=(3, 1))
    x, state, reset = observations(), network.initial_memory(B), flags()
    features, _ = network.features(x, state, reset)
    other = x[..., [3, 1]] + torch.tensor([0.5, -2.0]).double()
    changed = network.actor(features, other)
    # an observation with those columns changes the features, too
    seen = x.clone()
    seen[..., [3, 1]] = other
    assert not torch.allclose(network(seen, state, reset).actor, changed)
    torch.testing.assert_close(changed, by_hand(network, features, other), rtol=0, atol=1e-14)
    # without weight on the joined columns the account does not matter
    with torch.no_grad():
        network.actor_body.layers[0].weight[:, -2:] = 0.0
    kept = network.actor(features, x[..., [3, 1]])
    torch.testing.assert_close(network.actor(features, other), kept, rtol=0, atol=1e-15)


def test_several_accounts_of_one_row_are_valued_together():
    network = build(after_memory=(0,))
    features, _ = network.features(observations(), network.initial_memory(B), flags())
    accounts = torch.randn(T, B, 4, 1, generator=seeded(5), dtype=torch.float64)
    spread = features[:, :, None].expand(T, B, 4, 6)
    together = network.actor(spread, accounts)
    assert together.shape == (T, B, 4, 3)
    for k in range(4):
        alone = network.actor(features, accounts[:, :, k])
        torch.testing.assert_close(together[:, :, k], alone, rtol=0, atol=1e-14)


def test_critics_do_not_see_the_joined_columns_past_the_memory():
    plain, joined = build(), build(after_memory=(3,))
    weights = plain.state_dict()
    own = {k: v for k, v in joined.state_dict().items() if not k.startswith("actor_")}
    joined.load_state_dict({**weights, **{k: v for k, v in joined.state_dict().items()
                                          if k.startswith("actor_")}})  # fmt: skip
    assert {k: v.shape for k, v in own.items()} == {
        k: v.shape for k, v in weights.items() if not k.startswith("actor_")
    }
    x = observations()
    outputs = [n(x, n.initial_memory(B), flags((2, 1))) for n in (plain, joined)]
    assert torch.equal(outputs[0].critic, outputs[1].critic)
    assert torch.equal(outputs[0].memory, outputs[1].memory)


def test_without_joined_columns_the_account_is_empty():
    network = build()
    assert network.account(observations()).shape == (T, B, 0)
    assert network.actor_body.layers[0].weight.shape == (7, 6)


@pytest.mark.parametrize("seed", range(4))
def test_without_joined_columns_gradients_keep_their_last_bits(seed):
    # The features get gradients from the actor and from each critic; sums depend on their order.
    network = build(seed=seed).float()
    x, state, reset = observations(seed=seed).float(), network.initial_memory(B), flags((2, 1))

    def gradients(actor, critic):
        loss = (actor * actor.detach().cos()).sum() + critic.square().sum()
        return torch.autograd.grad(loss, tuple(network.parameters()))

    output = network(x, state, reset)
    features, _ = network.trunk(x, state, reset)
    actor = network.actor_last(network.actor_body(features))
    for own, plain in zip(
        gradients(output.actor, output.critic),
        gradients(actor, network.critic(features)),
        strict=True,
    ):
        assert torch.equal(own, plain)


def test_spread_units_read_a_variance_of_one_and_bend_in_different_places():
    """4 inputs on 64 units: the columns have the norm 4, the rows 1 on average; orthogonal, .35."""
    plain, spread = (
        build(first_layer=form, encoder_sizes=(64, 64), head_sizes=(32, 32))
        for form in ("orthogonal", "spread")
    )
    first, second = spread.trunk.encoder.layers
    expected = 16.0 * torch.eye(F, dtype=torch.float64)
    assert torch.allclose(first.weight.T @ first.weight, expected, atol=1e-5)
    assert float(first.weight.detach().square().sum(-1).mean()) == pytest.approx(1.0, abs=1e-6)
    earlier = plain.trunk.encoder.layers[0].weight
    assert torch.allclose(first.weight, earlier * 4.0 / 2.0**0.5, atol=1e-6)
    bodies = (spread.actor_body, *(head.body for head in spread.critic.heads))
    for layer in (first, *(layer for body in bodies for layer in body.layers)):
        bias = layer.bias.detach()
        # U(-1, 1): the mean of 32 or 64 is within .45 of 0, their deviation near .577
        assert float(bias.abs().max()) <= 1.0
        assert abs(float(bias.mean())) < 0.45
        assert 0.4 < float(bias.std()) < 0.75
    flat = (second, spread.actor_last, *spread.critic.last_layers())
    assert all(not bool(layer.bias.any()) for layer in flat)
    every = [m for m in plain.modules() if isinstance(m, torch.nn.Linear)]
    assert all(not bool(layer.bias.any()) for layer in every)


def test_fewer_units_than_inputs_read_a_variance_of_one_too():
    network = build(first_layer="spread", encoder_sizes=(3,))
    (first,) = network.trunk.encoder.layers
    assert torch.allclose(first.weight.square().sum(-1), torch.ones(3).double(), atol=1e-6)


def test_spread_weights_come_from_the_generator_alone():
    one, same, other = (build(first_layer="spread", seed=seed) for seed in (0, 0, 1))
    pairs = zip(one.parameters(), same.parameters(), other.parameters(), strict=True)
    equal = [(torch.equal(a, b), torch.equal(a, c)) for a, b, c in pairs]
    assert all(first for first, _ in equal)
    assert not torch.equal(one.trunk.encoder.layers[0].bias, other.trunk.encoder.layers[0].bias)
    heads = [head.body.layers[0].bias for head in one.critic.heads]
    assert not torch.equal(*heads)


def test_the_critics_own_weights_are_their_heads_and_their_trunk():
    for own in (False, True):
        network = build(enable_critic_lstm=own)
        wanted = {
            name
            for name, _ in network.named_parameters()
            if name.startswith(("critic.", "critic_trunk."))
        }
        theirs = {id(parameter) for parameter in network.critic_parameters()}
        assert {n for n, p in network.named_parameters() if id(p) in theirs} == wanted
        assert any(name.startswith("critic_trunk.") for name in wanted) == own
