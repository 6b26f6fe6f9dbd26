"""Statistics that travel with a network."""

import numpy as np
import pytest
import torch

from stormsail.functional import statistics
from stormsail.modules.scale import ObservationScale, ReturnScale


def sample(rows, seed=0):
    draw = np.random.Generator(np.random.PCG64(seed))
    return torch.from_numpy(draw.normal([1.0, -200.0, 0.0], [2.0, 0.5, 30.0], (rows, 3)))


@pytest.mark.spec("T-O2", "S1-N1")
def test_statistics_of_pieces_are_those_of_the_whole():
    scale, rows = ObservationScale(3), sample(1000)
    for piece in rows.split([1, 9, 490, 500]):
        scale.commit(statistics.moments(piece))
    assert float(scale.count) == 1000.0
    np.testing.assert_allclose(scale.mean, rows.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance(scale.moments), rows.numpy().var(0), rtol=1e-10)
    new = sample(50, seed=1)
    wanted = (new.numpy() - rows.numpy().mean(0)) / np.sqrt(rows.numpy().var(0) + 1e-8)
    np.testing.assert_allclose(scale(new), np.clip(wanted, -10.0, 10.0), rtol=1e-10, atol=1e-12)


def test_before_any_statistics_observations_pass_bit_for_bit():
    scale = ObservationScale(3)
    for dtype in (torch.float32, torch.float64):
        given = torch.tensor([[0.1, -25.0, 1e6]], dtype=dtype)
        assert torch.equal(scale(given), given)


def test_an_empty_rollout_changes_nothing():
    scale, rows = ObservationScale(3), sample(20)
    scale.commit(statistics.moments(rows))
    before = [part.clone() for part in scale.moments]
    scale.commit(statistics.moments(rows, weight=torch.zeros(20)))
    assert all(map(torch.equal, before, scale.moments))


def test_frozen_columns_are_untouched():
    scale = ObservationScale(3, frozen=torch.tensor([False, True, False]))
    scale.commit(statistics.moments(sample(100)))
    given = sample(5, seed=2) * 1e3
    assert torch.equal(scale(given)[:, 1], given[:, 1])
    assert scale(given)[:, [0, 2]].abs().max() == 10.0


def test_a_constant_column_becomes_zero():
    scale = ObservationScale(1)
    scale.commit(statistics.moments(torch.full((50, 1), 7.3)))
    assert torch.equal(scale(torch.full((2, 1), 7.3)), torch.zeros(2, 1))
    assert float(scale(torch.tensor([[8.0]]))) == 10.0  # a change in it is the largest of all


@pytest.mark.spec("T-O1", "S0-4")
def test_reading_changes_no_statistics():
    scale = ObservationScale(3)
    scale.commit(statistics.moments(sample(100)))
    before = {name: value.clone() for name, value in scale.state_dict().items()}
    scale(sample(50, seed=4))
    assert all(torch.equal(before[name], value) for name, value in scale.state_dict().items())


def test_float32_observations_stay_float32_and_lose_no_digits_to_a_large_mean():
    scale, rows = ObservationScale(1), torch.tensor([[1e6 - 1.0], [1e6 + 1.0]])
    scale.commit(statistics.moments(rows))
    scaled = scale(rows)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled, torch.tensor([[-1.0], [1.0]]), rtol=0, atol=1e-6)


def test_a_nan_in_an_observation_stays_in_its_column():
    scale = ObservationScale(3)
    scale.commit(statistics.moments(sample(100)))
    given = sample(2, seed=5)
    clean = scale(given)
    given[0, 1] = torch.nan
    broken = scale(given)
    assert broken[0, 1].isnan()
    assert torch.equal(broken[:, [0, 2]], clean[:, [0, 2]])
    assert torch.equal(broken[1], clean[1])


def test_no_statistics_are_weights():
    assert list(ObservationScale(3).parameters()) == []
    assert set(ObservationScale(3).state_dict()) == {"count", "mean", "m2", "frozen"}


@pytest.mark.spec("T-R4", "S4-Q1")
def test_decoding_undoes_encoding():
    scale = ReturnScale()
    returns = torch.linspace(-1e3, 1e3, 101, dtype=torch.float64)
    assert torch.equal(scale.encode(returns), returns)
    scale.mean.fill_(123.4)
    scale.std.fill_(0.037)
    encoded = scale.encode(returns)
    torch.testing.assert_close(encoded, (returns - 123.4) / 0.037, rtol=1e-14, atol=0)
    torch.testing.assert_close(scale.decode(encoded), returns, rtol=1e-12, atol=1e-10)
    assert scale.decode(encoded.float()).dtype == torch.float32
