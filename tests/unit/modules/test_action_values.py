"""Values of all actions: their inputs by hand, their shapes, and the unit of their outputs."""

import pytest
import torch

from stormsail.modules.action_values import RETURN_INPUTS, ActionValues, parts, return_inputs


def values(*, inputs=6, rewards=2, actions=3, seed=0):
    source = torch.Generator().manual_seed(seed)
    network = ActionValues(inputs, rewards=rewards, actions=actions, sizes=(8, 5), generator=source)
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
def test_every_reward_has_a_value_for_every_action(shape):
    network = values()
    x = torch.randn(*shape, 6, generator=torch.Generator().manual_seed(1))
    out = network(x)
    assert out.shape == (*shape, 2, 3)
    plain = network.last(network.body(x))  # [*b, R * (1 + K)]: a reward's columns are neighbours
    for reward in (0, 1):
        value, *added = (plain[..., 4 * reward + column] for column in range(4))
        mean = sum(added) / 3
        for action in range(3):
            expected = value + added[action] - mean
            torch.testing.assert_close(out[..., reward, action], expected)


def test_one_action_has_the_value_of_the_state():
    network, x = values(actions=1), torch.ones(4, 6)
    network.unit.copy_(torch.tensor([[2.0, 9.0], [10.0, 9.0]]))
    plain = network.last(network.body(x))
    assert plain.shape == (4, 2)
    torch.testing.assert_close(network(x)[..., 0], plain * torch.tensor([2.0, 10.0]))
    network.rescale(torch.tensor([[4.0, 1.0], [5.0, 1.0]]))
    torch.testing.assert_close(network(x)[..., 0], plain * torch.tensor([2.0, 10.0]))


def test_values_and_what_actions_add_count_in_units_of_their_own():
    network, x = values(), torch.ones(4, 6)
    mean, added = parts(network(x).detach())
    network.unit.copy_(torch.tensor([[2.0, 0.5], [10.0, 3.0]]))
    new_mean, new_added = parts(network(x).detach())
    torch.testing.assert_close(new_mean, mean * torch.tensor([[2.0], [10.0]]))
    torch.testing.assert_close(new_added, added * torch.tensor([[0.5], [3.0]]))


def test_parts_by_hand():
    mean, added = parts(torch.tensor([[1.0, 2.0, 6.0]]))
    assert mean.tolist() == [[3.0]]
    assert added.tolist() == [[-2.0, -1.0, 3.0]]


@pytest.mark.parametrize("unit", [(3.0, 0.01), (1e-6, 1e4)])
def test_a_new_unit_keeps_every_prediction(unit):
    network = values().double()
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    network.rescale(torch.tensor([[0.5, 7.0], [2.0, 0.1]], dtype=torch.float64))
    before = network(x)
    new = torch.tensor([unit, unit[::-1]], dtype=torch.float64)
    network.rescale(new)
    assert torch.equal(network.unit, new)
    torch.testing.assert_close(network(x), before, rtol=1e-12, atol=1e-12)


def test_the_unit_is_saved_and_the_weights_come_from_the_generator():
    first, second = values(), values()
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    assert not torch.equal(first.last.weight, values(seed=1).last.weight)
    first.rescale(torch.tensor([[2.0, 3.0], [4.0, 5.0]]))
    second.load_state_dict(first.state_dict())
    assert second.unit.tolist() == [[2.0, 3.0], [4.0, 5.0]]
