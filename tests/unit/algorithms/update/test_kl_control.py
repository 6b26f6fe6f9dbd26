"""Early stop at its boundaries, and the controller of the penalty."""

import json
import math

import pytest

from stormsail.algorithms.config import KlConfig
from stormsail.algorithms.update.kl_control import KlControl
from stormsail.core.errors import ArtifactError

NEVER = {"kl_absolute_stop_factor": 1e9, "kl_consec_minibatches": 1000}


def build(**settings):
    """Return a controller with a target of 1/16, whose multiples are exact, without average."""
    return KlControl(KlConfig(**{"target_kl": 0.0625, "use_ema": False, **settings}))


def reasons(control, *divergences):
    """Return the reason after each minibatch."""
    result = []
    for divergence in divergences:
        stopped = control.stops(divergence)
        assert stopped is (control.reason != "")
        result.append(control.reason)
    return result


@pytest.mark.parametrize(
    ("factor", "reason"), [(2.4999, ""), (2.5, "absolute"), (99.0, "absolute")]
)
def test_one_minibatch_far_beyond_the_target_is_enough(factor, reason):
    assert reasons(build(kl_consec_minibatches=10), factor * 0.0625) == [reason]


def test_the_target_itself_is_not_beyond_it():
    control = build(kl_exceed_stop_fraction=0.01)
    assert reasons(control, *[0.0625] * 50) == [""] * 50


def test_some_in_a_row_are_enough():
    just = math.nextafter(0.0625, 1.0)
    control = build(kl_consec_minibatches=3, kl_exceed_stop_fraction=1.0)
    assert reasons(control, just, just, 0.0, just, just, just) == [""] * 5 + ["consecutive"]


def test_a_share_of_all_is_enough():
    # One in four is a quarter: the rule is met by equality, once as many as make a row were seen.
    control = build(kl_exceed_stop_fraction=0.25, **NEVER | {"kl_consec_minibatches": 4})
    assert reasons(control, 0.0, 0.1, 0.0, 0.0) == ["", "", "", "fraction"]
    control = build(kl_exceed_stop_fraction=0.2501, **NEVER | {"kl_consec_minibatches": 4})
    assert reasons(control, 0.0, 0.1, 0.0, 0.0) == [""] * 4
    assert reasons(control, 0.1) == ["fraction"]  # two of five


def test_a_share_of_very_few_is_not_judged():
    control = build(kl_exceed_stop_fraction=0.25, kl_consec_minibatches=2)
    assert reasons(control, 0.1) == [""]


def test_an_unknown_divergence_stops():
    for unknown in (math.nan, math.inf):
        assert reasons(build(), unknown) == ["absolute"]


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_the_average_judges_rows_and_shares_and_each_minibatch_the_absolute_rule(alpha):
    # target 1; average 0, then 1.9 alpha: below 1 for alpha = 2/11, so one peak is forgiven
    control = build(target_kl=1.0, use_ema=True, kl_ema_alpha=alpha, kl_exceed_stop_fraction=1.0)
    weight = 2.0 / 11.0 if alpha is None else alpha
    assert reasons(control, 0.0, 1.9) == ["", ""]
    assert control.average == pytest.approx(1.9 * weight, rel=1e-12)
    control.stops(1.9)
    before = 1.9 * weight
    assert control.average == pytest.approx(before + weight * (1.9 - before), rel=1e-12)
    assert reasons(control, 2.5) == ["absolute"]


@pytest.mark.spec("X16")
def test_without_the_average_every_minibatch_is_judged_by_itself():
    """0, 1.9, 1.9 at a target of 1: an average moving by 2/11 stays below, two in a row do not."""
    settings = {"target_kl": 1.0, "kl_consec_minibatches": 2, "kl_exceed_stop_fraction": 1.0}
    assert reasons(build(**settings, use_ema=True), 0.0, 1.9, 1.9) == ["", "", ""]
    assert reasons(build(**settings, use_ema=False), 0.0, 1.9, 1.9) == ["", "", "consecutive"]


def test_the_first_minibatch_is_the_first_average():
    control = build(target_kl=1.0, use_ema=True)
    control.stops(0.4)
    assert control.average == 0.4


def test_later_epochs_may_have_a_smaller_target():
    control = build(kl_epoch_decay=0.5, kl_exceed_stop_fraction=1.0)
    targets = []
    for epoch in range(3):
        control.begin_epoch(epoch)
        targets.append(control.target)
    assert targets == [0.0625, 0.03125, 0.015625]
    assert reasons(control, 2.5 * 0.015625) == ["absolute"]


def test_a_new_update_forgets_the_minibatches_of_the_old_one():
    control = build(kl_consec_minibatches=2, kl_exceed_stop_fraction=1.0, kl_epoch_decay=0.5)
    control.begin_epoch(3)
    assert reasons(control, 0.01) == [""]
    control.begin_update()
    assert (control.average, control.reason, control.target) == (None, "", 0.0625)
    assert reasons(control, 0.07, 0.07) == ["", "consecutive"]


def test_watching_without_stopping():
    control = build(kl_early_stop=False)
    assert reasons(control, 1e9, math.nan, 1.0) == ["", "", ""]


def test_without_a_target_nothing_happens():
    control = build(target_kl=None, penalty=True)
    assert control.target == math.inf
    assert reasons(control, 1e9, math.nan) == ["", ""]
    before = control.state_dict()
    control.end_update(1e9)
    assert control.state_dict() == before
    assert control.penalty == 0.0


def controller(**settings):
    shape = {"target_kl": 0.1, "penalty": True, "beta_init": 0.2, "kp": 0.5, "ki": 0.05, "kd": 0.1}
    return build(**{**shape, **settings})


def test_the_controller_by_hand():
    # errors .2 / .1 - 1 = 1, then .15 / .1 - 1 = .5
    control = controller()
    control.end_update(0.2)
    assert control.beta == pytest.approx(0.2 + 0.5 * 1.0 + 0.05 * 1.0 + 0.1 * 1.0, rel=1e-12)
    control.end_update(0.15)
    wanted = 0.2 + 0.5 * 0.5 + 0.05 * 1.5 + 0.1 * (0.5 - 1.0)
    assert control.beta == pytest.approx(wanted, rel=1e-12)
    assert control.penalty == control.beta
    control.end_update(0.1)  # on target: what is left is the integral, and the derivative
    assert control.beta == pytest.approx(0.2 + 0.05 * 1.5 + 0.1 * (0.0 - 0.5), rel=1e-12)


def test_too_little_movement_lowers_the_penalty_to_its_bound():
    control = controller(beta_min=0.01)
    control.end_update(0.0)
    assert control.beta == 0.01
    assert control.integral == pytest.approx(-0.9, rel=1e-12)  # back-calculation


def test_the_integral_is_bounded_and_comes_back_at_once():
    # Bound (1 - .0001) / .05 = 19.998. Without it 1000 updates of error 9 sum to 9000, and only
    # as many updates of error -1 would bring the coefficient down again.
    control = controller(kp=0.0, kd=0.0, beta_min=1e-4, beta_max=1.0)
    for _ in range(1000):
        control.end_update(1.0)
    assert control.beta == 1.0
    assert control.integral == pytest.approx(0.9 * 19.998, rel=1e-12)
    result = []
    for _ in range(3):
        control.end_update(0.0)
        result.append(control.beta)
    # 16.9982 is still too much and is cut to 15.29838; then one less at each update
    assert result == pytest.approx([1.0, 0.2 + 0.05 * 14.29838, 0.2 + 0.05 * 13.29838], rel=1e-12)


def test_the_integral_never_exceeds_its_bound():
    control = controller(kp=0.0, kd=0.0, ki=1.0, beta_init=1e-4, beta_min=1e-4, beta_max=1.0)
    control.end_update(1e6)
    assert control.integral <= 1.0 - 1e-4


def test_without_an_integral_gain_there_is_no_integral():
    control = controller(ki=0.0)
    for _ in range(5):
        control.end_update(0.2)
    assert control.integral == 0.0
    assert control.beta == pytest.approx(0.2 + 0.5, rel=1e-12)


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_an_unknown_divergence_moves_nothing(unknown):
    control = controller()
    control.end_update(0.15)
    before = control.state_dict()
    control.end_update(unknown)
    assert control.state_dict() == before


def test_without_a_penalty_its_weight_is_zero():
    control = controller(penalty=False)
    control.end_update(0.2)
    assert control.penalty == 0.0


def test_a_restored_controller_goes_on_exactly():
    values = [0.05, 0.31, 0.2, 0.0, 0.7, 0.11]
    one = controller()
    for value in values[:3]:
        one.end_update(value)
    other = controller()
    other.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    for value in values[3:]:
        one.end_update(value)
        other.end_update(value)
        assert other.beta == one.beta
    assert other.state_dict() == one.state_dict()


@pytest.mark.parametrize("state", [None, {}, {"beta": 1.0, "integral": 0.0}, {"beta": "x"}])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ArtifactError) as caught:
        build().load_state_dict(state)
    assert caught.value.code == "artifact-document"
