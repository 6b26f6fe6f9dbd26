"""The four levels of the audit to the last bit, and how long an alarm lasts."""

import math

import pytest

from stormsail.monitors.alarms import Alarms

LEVELS = {
    "warn/excessive_return_scaling": ("train/value_target_scale", 100.0),
    "alert/gradient_explosion": ("train/grad_norm_pre_clip_max", 50.0),
    "alert/advantage_outliers": ("train/advantages_norm_max_abs", 20.0),
    "alert/loss": ("train/value_loss", 1000.0),
}


def begun(alarms, metrics):
    return {alarm.name for alarm in alarms.check({"train/ret_std": 1.0, **metrics})}


@pytest.mark.spec("S4-R1", "S4-O2", "T-M3", "T-M4")
@pytest.mark.parametrize("name", LEVELS)
def test_a_level_is_exact_and_its_alarm_lasts_as_long_as_it_is_passed(name):
    metric, level = LEVELS[name]
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
