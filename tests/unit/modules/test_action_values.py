"""Values of all actions: inputs by hand, parts that share nothing, and units of the outputs."""

import pytest
import torch

from stormsail.modules.action_values import RETURN_INPUTS, ActionValues, about_mean, return_inputs


def values(*, actions=3, seed=0, hidden=()):
    source = torch.Generator().manual_seed(seed)
    network = ActionValues(
        6, rewards=2, actions=actions, sizes=(8, 5), generator=source, hidden=hidden
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=source))
    return network


def test_inputs_of_the_return_so_far_by_hand():
    # level -2, spread 4: distances (C + 2) / 4 = -.5, .05, 2, -24.5; a tenth of a spread is .4
    columns = return_inputs(
        torch.tensor([-4.0, -1.8, 6.0, -100.0]),
        torch.tensor(-2.0),
        torch.tensor(4.0),
        torch.tensor([1.0, 0.75, 0.5, 0.25]),
    )
    assert columns.shape == (4, RETURN_INPUTS)
    expected = [
        [1.0, -1.0, -0.5, -3.0, -0.5],
        [0.75, -0.45, 0.05, 0.5, 0.0],
        [0.5, 1.5, 2.0, 3.0, 0.0],
        [0.25, -3.0, -3.0, -3.0, -3.0],
    ]
    torch.testing.assert_close(columns, torch.tensor(expected), rtol=0.0, atol=1e-6)


def test_inputs_of_every_action_share_the_time_that_is_left():
    columns = return_inputs(
        torch.arange(6.0).reshape(2, 3), torch.tensor(0.0), torch.tensor(1.0), torch.ones(2, 1)
    )
    assert columns.shape == (2, 3, RETURN_INPUTS)
    assert columns[..., 0].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("shape", [(), (7,), (2, 4)])
def test_every_reward_has_a_value_and_every_action_adds_to_the_last(shape):
    network = values()
    network.unit.copy_(torch.tensor([2.0, 10.0, 0.5]))
    x = torch.randn(*shape, 6, generator=torch.Generator().manual_seed(1))
    value, added = network(x)
    assert value.shape == (*shape, 2)
    assert added.shape == (*shape, 3)
    for reward, unit in enumerate((2.0, 10.0)):
        plain = network.states[reward](x)[..., 0]
        torch.testing.assert_close(value[..., reward], unit * plain)
        torch.testing.assert_close(network.value(x, reward), unit * plain)
    q = network.advantages(x)
    mean = (q[..., 0] + q[..., 1] + q[..., 2]) / 3
    for action in range(3):
        torch.testing.assert_close(added[..., action], 0.5 * (q[..., action] - mean))


def test_the_parts_share_no_weights():
    """What one is taught moves none of the others."""
    network, x = values(), torch.ones(4, 6)
    before = network(x)
    with torch.no_grad():
        for parameter in network.states[1].parameters():
            parameter.add_(1.0)
    value, added = network(x)
    assert torch.equal(value[:, 0], before[0][:, 0])
    assert not torch.equal(value[:, 1], before[0][:, 1])
    assert torch.equal(added, before[1])


def test_the_value_of_the_last_reward_does_not_see_hidden_columns():
    network = values(hidden=(1, 4))
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(3))
    other = x.clone()
    other[:, [1, 4]] += 5.0
    (value, added), (new_value, new_added) = network(x), network(other)
    assert torch.equal(value[:, 1], new_value[:, 1])
    assert not torch.isclose(value[:, 0], new_value[:, 0]).any()
    assert not torch.isclose(added, new_added).any()
    other[:, 2] += 5.0
    assert not torch.isclose(network(other)[0][:, 1], value[:, 1]).any()


def test_one_action_adds_nothing():
    network, x = values(actions=1), torch.ones(4, 6)
    network.unit.copy_(torch.tensor([2.0, 10.0, 9.0]))
    value, added = network(x)
    assert added.tolist() == [[0.0]] * 4
    network.rescale(torch.tensor([4.0, 5.0, 1.0]))
    torch.testing.assert_close(network(x)[0], value)


def test_what_actions_add_by_hand():
    assert about_mean(torch.tensor([[1.0, 2.0, 6.0]])).tolist() == [[-2.0, -1.0, 3.0]]


@pytest.mark.parametrize("unit", [(3.0, 0.01, 20.0), (1e-6, 1e4, 1.0)])
def test_a_new_unit_keeps_every_prediction(unit):
    network = values().double()
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    network.rescale(torch.tensor([0.5, 7.0, 2.0], dtype=torch.float64))
    before = network(x)
    new = torch.tensor(unit, dtype=torch.float64)
    network.rescale(new)
    assert torch.equal(network.unit, new)
    for now, old in zip(network(x), before, strict=True):
        torch.testing.assert_close(now, old, rtol=1e-12, atol=1e-12)


def test_units_are_saved_and_the_weights_come_from_the_generator():
    first, second = values(), values()
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    assert not torch.equal(first.advantages[-1].weight, values(seed=1).advantages[-1].weight)
    first.rescale(torch.tensor([2.0, 3.0, 4.0]))
    second.load_state_dict(first.state_dict())
    assert second.unit.tolist() == [2.0, 3.0, 4.0]
