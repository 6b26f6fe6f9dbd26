"""What is made of weights is made once where they are steady, and nowhere else."""

import pytest
import torch

from stormsail.core.task import DiscreteActions
from stormsail.functional.kernels.layers.steady_weights import are_steady, made_of, steady_weights
from stormsail.modules import layers, memory
from stormsail.modules.config import CriticConfig, NetworkConfig, PolicyConfig
from stormsail.modules.network import Network


def test_what_is_made_of_weights_lives_as_long_as_they_are_steady():
    weight, other, calls = torch.ones(2), torch.ones(2), []

    def made(part, *weights):
        return made_of(weights, part, lambda: calls.append(part) or torch.stack(weights))

    with torch.no_grad():
        for _ in range(2):
            made("a", weight)
        assert calls == ["a", "a"]
        for _ in range(2):
            with steady_weights():
                assert are_steady()
                pairs = [
                    made(*given)
                    for given in (("b", weight), ("b", weight), ("c", weight), ("b", other))
                ]
                assert pairs[0] is pairs[1]
        assert not are_steady()
        assert calls == ["a", "a", *["b", "c", "b"] * 2]
    with steady_weights():
        assert not are_steady()  # a gradient goes back to the weights themselves
        assert made("d", weight) is not made("d", weight)


@pytest.mark.parametrize(
    ("inputs", "past", "kind"), [(5, (), "lstm"), (16, (1, 3), "gru"), (16, (), "gru")]
)
def test_rows_of_a_rollout_are_the_same_through_kernels(inputs, past, kind, device, monkeypatch):
    network = Network(
        inputs,
        DiscreteActions(3),
        network=NetworkConfig(
            encoder_sizes=(16,), memory=kind, lstm_hidden_size=6, head_sizes=(7,)
        ),
        policy=PolicyConfig(),
        critic=CriticConfig(num_quantiles=5),
        generator=torch.Generator().manual_seed(3),
        after_memory=past,
    ).to(device)
    source = torch.Generator().manual_seed(4)
    observations = torch.randn(3, 4, inputs, generator=source).to(device)
    reset = torch.zeros(1, 4, dtype=torch.bool, device=device)

    def rows(*, launches):
        for module in (layers, memory):
            monkeypatch.setattr(module, "may_launch", lambda *_: launches)
        state, found = network.initial_memory(4), []
        with torch.no_grad(), steady_weights():
            for observation in observations:
                output = network(observation[None], state, reset)
                state = output.memory
                found += [output.actor, output.critic, state, output.features]
        assert past or all(part.is_contiguous() for part in found[:2])
        return found

    before = rows(launches=True)
    for a, b in zip(before, rows(launches=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    for a, b in zip(rows(launches=True), rows(launches=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
