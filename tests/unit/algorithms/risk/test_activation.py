"""The gate of the fixed weight: threshold, margin, ramp."""

import math

import numpy as np
import pytest

from oracles import risk_control as oracle
from stormsail.algorithms.config import RiskConfig
from stormsail.algorithms.risk.control import ActivationGate


def gate(**changes):
    return ActivationGate(RiskConfig(**changes))


def test_it_opens_at_the_threshold_and_shuts_below_the_margin():
    """Threshold .15, margin .05: .14 does not open, .15 does, .10 keeps it, below .10 shuts."""
    control = gate(cvar_ramp_updates=0)
    values = [0.14, 0.15, 0.11, 0.1000001, 0.0999, 0.12, 0.149, 0.5]
    assert [control.share(v) for v in values] == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_the_ramp_counts_updates_since_it_opened_and_begins_again():
    control = gate(cvar_ramp_updates=4)
    result = [control.share(v) for v in (0.2, 0.2, 0.2, 0.2, 0.2, 0.0, 0.2)]
    assert result == [0.25, 0.5, 0.75, 1.0, 1.0, 0.0, 0.25]


def test_what_is_unknown_neither_opens_nor_shuts():
    control = gate(cvar_ramp_updates=2)
    assert control.share(math.nan) == 0.0
    control.share(0.3)
    assert control.share(math.nan) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_the_gate_is_that_of_the_loop(seed):
    values = np.random.default_rng(seed).normal(0.12, 0.06, 50).tolist()
    control = gate()
    expected = oracle.gate(values, 0.15, 0.05, 12)
    assert [control.share(v) for v in values] == expected
    assert max(expected) > 0.0


def test_a_restored_gate_goes_on_with_its_ramp():
    first, second = gate(cvar_ramp_updates=5), gate(cvar_ramp_updates=5)
    first.share(0.2)
    first.share(0.2)
    second.restore(first.state())
    assert second.share(0.12) == first.share(0.12) == 0.6
