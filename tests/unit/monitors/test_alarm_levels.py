"""The four levels of the audit to the last bit, and how long an alarm lasts."""

import math

import pytest

from stormsail.monitors.alarm_rules import RULES
from stormsail.monitors.alarms import Alarms

LEVELS = {
    "warn/excessive_return_scaling": 100.0,
    "alert/gradient_explosion": 50.0,
    "alert/advantage_outliers": 20.0,
    "alert/loss": 1000.0,
}
METRICS = {rule.name: rule.metric for rule in RULES}


def begun(alarms, metrics):
    return {alarm.name for alarm in alarms.check({"train/ret_std": 1.0, **metrics})}


@pytest.mark.spec("S4-R1", "S4-O2", "T-M3", "T-M4")
@pytest.mark.parametrize("name", LEVELS)
def test_a_level_is_exact_and_its_alarm_lasts_as_long_as_it_is_passed(name):
    metric, level = METRICS[name], LEVELS[name]
    above = math.nextafter(level, math.inf)
    alarms = Alarms()
    assert name not in begun(alarms, {metric: level})
    assert name not in alarms.active
    assert name in begun(alarms, {metric: above})
    for _ in range(3):
        assert name not in begun(alarms, {metric: above})
        assert name in alarms.active
    assert name not in begun(alarms, {metric: level})
    assert name not in alarms.active
    assert name in begun(alarms, {metric: above})
