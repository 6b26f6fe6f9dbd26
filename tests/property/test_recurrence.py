"""Properties of `stormsail.functional.recurrence`, against loops over single numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracles import recurrence as oracle
from stormsail.functional import recurrence

numbers = st.floats(-3.0, 3.0, width=64)


@st.composite
def layers(draw, parts):
    """Return gates, weight, bias, two states, reset and two initial states."""
    rows, batch, width = (draw(st.integers(1, high)) for high in (6, 3, 3))

    def array(*shape):
        return draw(arrays.arrays(np.float64, shape, elements=numbers))

    reset = draw(arrays.arrays(np.bool_, (rows, batch)))
    total = parts * width
    return (
        array(rows, batch, total),
        array(total, width),
        array(total),
        array(batch, width),
        array(batch, width),
        reset,
        array(width),
        array(width),
    )


def tensors(*values):
    return [torch.from_numpy(value) for value in values]


@settings(max_examples=60)
@given(layers(4))
def test_an_lstm_equals_the_loop_over_its_numbers(layer):
    gates, weight, _, *rest = layer
    output, cell = recurrence.lstm_sequence(*tensors(gates, weight, *rest))
    wanted, wanted_cell = oracle.lstm_sequence(gates, weight, *rest)
    np.testing.assert_allclose(output, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(cell, wanted_cell, rtol=1e-12, atol=1e-12)


@settings(max_examples=60)
@given(layers(3))
def test_a_gru_equals_the_loop_over_its_numbers(layer):
    gates, weight, bias, hidden, _, reset, initial, _ = layer
    args = (gates, weight, bias, hidden, reset, initial)
    wanted = oracle.gru_sequence(*args)
    np.testing.assert_allclose(
        recurrence.gru_sequence(*tensors(*args)), wanted, rtol=1e-12, atol=1e-12
    )


@settings(max_examples=40)
@given(layers(4), st.integers(0, 5))
def test_an_lstm_cut_in_two_calls_gives_the_same_rows(layer, where):
    gates, weight, _, hidden, cell, reset, *initial = tensors(*layer)
    cut = min(where, gates.shape[0] - 1)
    whole, last = recurrence.lstm_sequence(gates, weight, hidden, cell, reset, *initial)
    if cut:
        first, cell = recurrence.lstm_sequence(
            gates[:cut], weight, hidden, cell, reset[:cut], *initial
        )
        torch.testing.assert_close(first, whole[:cut], rtol=0, atol=1e-13)
        hidden = first[-1]
    second, end = recurrence.lstm_sequence(gates[cut:], weight, hidden, cell, reset[cut:], *initial)
    torch.testing.assert_close(second, whole[cut:], rtol=0, atol=1e-13)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-13)


@pytest.mark.spec("T-L2", "S1-L1", "S3-FP3")
@settings(max_examples=40)
@given(layers(3), st.data())
def test_a_reset_of_one_environment_leaves_the_others_bit_for_bit(layer, data):
    gates, weight, bias, hidden, _, reset, initial, _ = tensors(*layer)
    one = data.draw(st.integers(0, gates.shape[1] - 1))
    row = data.draw(st.integers(0, gates.shape[0] - 1))
    flipped = reset.clone()
    flipped[row, one] = ~flipped[row, one]
    before = recurrence.gru_sequence(gates, weight, bias, hidden, reset, initial)
    after = recurrence.gru_sequence(gates, weight, bias, hidden, flipped, initial)
    others = [b for b in range(gates.shape[1]) if b != one]
    assert torch.equal(before[:, others], after[:, others])
    assert torch.equal(before[:row, one], after[:row, one])
