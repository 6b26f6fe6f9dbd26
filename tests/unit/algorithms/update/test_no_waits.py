"""An update that reads its numbers once, when its epochs are over, and what it then refuses."""

import copy
import dataclasses
import gc
import math

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from host_reads import host_reads
from learner_lab import CRITICS, aged, learner, script, settings
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import device_epochs, graphs
from stormsail.algorithms.update.device_epochs import DeviceEpochs
from stormsail.algorithms.update.graphs import Recorder
from stormsail.algorithms.update.nonfinite import Diverged, finite_norms, first_nonfinite
from stormsail.core.errors import DataError

UPGD = {"optimizer.optimizer_class": "AdaptiveUPGD"}
VARIANTS = {
    "quantile": {},
    "scalar": CRITICS["scalar"],
    "monotone": {"critic.monotone_quantiles": True},
    "UPGD": UPGD,
    "slow scale": {"ppo.advantage_scale": "slow"},
    "robust spread": {"returns.return_stat": "mad", "returns.std_floor_mode": "adaptive"},
    "scale": {"returns.normalize_returns": "scale"},
    "frozen lag": {"returns.normalize_returns": "frozen_lag"},
    "reward units": {"returns.normalize_returns": "off"},
    "freeze": {"returns.freeze_after": 2, "returns.warmup_updates": 1},
}


def pair(**changes):
    """Return a learner that looks at every minibatch, and its twin that looks once an update."""
    changes = {"ppo.batch_size": 3, "ppo.n_epochs": 2, "observation.obs_stats_update":
               "between_rollouts", "returns.warmup_updates": 2, **changes}  # fmt: skip
    asking, twin = (
        aged(learner(settings(**changes), told=script(weights=(1.0, 0.25, 0.5)))) for _ in range(2)
    )
    entropy = twin.generators.stream("entropy")
    twin._epochs = DeviceEpochs(twin.agent, twin.pipeline, twin.config, entropy, captured=False)
    return asking, twin


def state_of(ppo):
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in flat(checkpoint.learner_state(ppo), "state")
    }


def flat(value, path):
    """Yield every leaf of a nest by its path, tensors and others."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}/{key}")
    elif isinstance(value, tuple | list):
        for key, item in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            yield from flat(item, f"{path}/{key}")
    else:
        yield path, value


def differing(first, second):
    """Return the paths at which two states differ."""
    assert first.keys() == second.keys()
    return [
        name
        for name, value in first.items()
        if not (
            torch.equal(value, second[name])
            if isinstance(value, torch.Tensor)
            else value == second[name] or (value != value and second[name] != second[name])
        )
    ]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_one_look_at_the_end_gives_the_update_of_many_looks(changes, monkeypatch):
    """Bit for bit, and nothing is read before the last minibatch was launched."""
    asking, twin = pair(**changes)
    for number in range(4):
        one = asking.update()
        with host_reads(monkeypatch) as (places, leaves):
            two = twin.update()
        if number > 0:  # the first rollout is looked at by itself
            assert places == []
        assert len(leaves) == 1
        assert differing(state_of(asking), state_of(twin)) == []
        told, wanted = metrics(twin, two), metrics(asking, one)
        assert told.keys() == wanted.keys()
        for name, value in wanted.items():
            assert told[name] == value or (math.isnan(value) and math.isnan(told[name])), name


LIMIT = {
    "risk.cvar_alpha": 0.3, "risk.cvar_min_samples": 12, "risk.cvar_min_tail_samples": 2,
    "risk.cvar_window": 48, "risk.form": "budget", "risk.cvar_use_constraint": True,
    "risk.cvar_limit": 0.5, "risk.cvar_reward": "any",
}  # fmt: skip
WEIGHED = {**LIMIT, "risk.cvar_use_constraint": False, "risk.cvar_limit": None,
           "risk.cvar_weight": 0.4, "risk.cvar_ramp_updates": 3,
           "risk.cvar_activation_threshold": -100.0}  # fmt: skip
LIMITS = {
    "limit": LIMIT,
    "weight": WEIGHED,
    "both, bounded": {**LIMIT, "risk.cvar_weight": 0.4, "risk.cvar_cap": 1e-3,
                      "risk.cvar_activation_threshold": -100.0},
    "integral": {**LIMIT, "risk.dual_controller": "integral", "risk.cvar_lambda_lr": 0.1},
    "critics alone": {**LIMIT, "ppo.critic_grad_warmup_updates": 3},
    "atoms": {**LIMIT, "critic.kind": "categorical", "critic.v_range_ema_alpha": 0.0,
              "returns.warmup_updates": 0},
    "tail episodes": {**LIMIT, "risk.cvar_policy_mode": "episode"},
    "states": {**LIMIT, "risk.cvar_policy_mode": "state", "risk.cvar_rescale": False},
    "too few": {**LIMIT, "risk.cvar_min_samples": 40},
}  # fmt: skip


@pytest.mark.parametrize("changes", LIMITS.values(), ids=LIMITS)
def test_a_limit_waits_for_nothing_and_decides_what_it_would(changes, monkeypatch):
    """The host goes by the rules again with what it read, so its state is the same to the bit."""
    asking, twin = pair(**changes)
    mixed = 0
    for number in range(6):
        one = asking.update()
        with host_reads(monkeypatch) as (places, leaves):
            two = twin.update()
        if number > 0:
            assert places == []
        assert len(leaves) == 1 + (changes.get("critic.kind") == "categorical")
        assert torch.allclose(one.mixed, two.mixed, rtol=1e-12, atol=1e-12)
        assert torch.allclose(one.risk.risk, two.risk.risk, rtol=1e-6, atol=1e-6)
        mixed += not torch.equal(two.mixed, two.estimates.raw_advantage)
        assert differing(state_of(asking), state_of(twin)) == []
        for field in dataclasses.fields(one.risk):
            told, wanted = getattr(two.risk, field.name), getattr(one.risk, field.name)
            if isinstance(wanted, float):
                near = 1e-6 if field.name == "predicted" else 1e-12
                assert told == pytest.approx(wanted, rel=near, abs=near, nan_ok=True), field.name
            elif field.name != "advantage" and not isinstance(wanted, torch.Tensor):
                assert told == wanted or field.name == "tail", field.name
    assert mixed > 2
    assert str(one.risk.tail) == str(two.risk.tail)


def test_a_support_that_moves_is_looked_at_while_it_does(monkeypatch):
    changes = {"critic.kind": "categorical", "critic.v_range_ema_alpha": 0.0}
    asking, twin = pair(**changes, **{"returns.warmup_updates": 2})
    looks = []
    for _ in range(4):
        asking.update()
        with host_reads(monkeypatch) as (_, leaves):
            twin.update()
        looks.append(len(leaves))
        assert differing(state_of(asking), state_of(twin)) == []
    assert looks == [4, 4, 2, 2]  # whether the statistics still warm up is asked, too


BROKEN = ("reward", "observation", "predicted", "next_predicted", "memory", "seen")


ALL = {**UPGD, "ppo.advantage_scale": "slow", "returns.normalize_returns": "scale",
       "returns.ret_clip": 3.7}  # fmt: skip


def broken(rollout, part):
    """Put a number that is not finite into a rollout."""
    place = rollout.seen.m2 if part == "seen" else getattr(rollout, part)
    place.view(-1)[1] = math.inf if part == "predicted" else math.nan


@pytest.mark.parametrize("part", BROKEN)
@pytest.mark.parametrize("changes", [{}, ALL], ids=["defaults", "all"])
def test_what_is_not_finite_changes_nothing_and_is_told_as_ever(part, changes):
    """The task's state and the streams of a rollout have gone on, as they had before the look."""
    asking, twin = pair(**changes)
    for ppo in (asking, twin):
        for _ in range(3):
            ppo.update()
        ppo.agent.return_scale.std.fill_(1e-6)  # from elsewhere: an update would raise it
    messages, before = [], state_of(twin)
    for ppo in (asking, twin):
        collect = ppo._collect

        def spoilt(collect=collect):
            env_state, rollout = collect()
            broken(rollout, part)
            return env_state, rollout

        ppo._collect = spoilt
        with pytest.raises((DataError, Diverged)) as caught:
            ppo.update()
        messages.append((type(caught.value), str(caught.value)))
        ppo._collect = collect
    assert messages[0] == messages[1]
    changed = differing(before, state_of(twin))
    streams = {f"state/generators/torch:{name}" for name in ("actions", "task")}
    changed = {name for name in changed if not name.startswith("state/env_state")}
    assert changed <= streams
    assert differing(state_of(asking), state_of(twin)) == []
    for ppo in (asking, twin):
        ppo.update()
    assert differing(state_of(asking), state_of(twin)) == []


def test_a_first_update_that_is_not_finite_leaves_no_moments():
    _, twin = pair(**VARIANTS["slow scale"])
    twin.history = twin.history._replace(pretrained=True)  # so that nothing looks before
    collect = twin._collect

    def spoilt():
        env_state, rollout = collect()
        broken(rollout, "reward")
        return env_state, rollout

    twin._collect = spoilt
    before = copy.deepcopy(twin.returns.state_dict())
    with pytest.raises(DataError):
        twin.update()
    assert twin.advantage_moments is None
    assert twin.returns.state_dict() == before
    assert twin.update_count == 0


class Replayed:
    """A graph of a machine without any: every call runs the function with what it was made of."""

    def __init__(self, function, _):
        self.function = function

    def __call__(self):
        return self.function()


@pytest.mark.parametrize("changes", [UPGD, {"returns.return_stat": "mad"}])
def test_statistics_through_places_are_plain_ones(changes, monkeypatch):
    """What is recorded between rollout and epochs reads nothing but its places."""
    monkeypatch.setattr(graphs, "Graph", Replayed)
    plain, placed = pair(**changes)
    placed.recorder = Recorder(captured=True)
    for _ in range(4):
        plain.update()
        placed.update()
        assert differing(state_of(plain), state_of(placed)) == []
    assert {"estimates", "sequences"} <= set(placed.recorder._known)


def test_recording_the_statistics_leaves_them_as_they_were(monkeypatch):
    """A recording runs what it records twice before: all that it writes is put back."""

    class Warmed(Replayed):
        def __init__(self, function, generators):
            function()
            function()
            super().__init__(function, generators)

    monkeypatch.setattr(graphs, "Graph", Warmed)
    plain, placed = pair(**UPGD)
    placed.recorder = Recorder(captured=True)
    for _ in range(4):
        plain.update()
        placed.update()
        assert differing(state_of(plain), state_of(placed)) == []


def test_a_large_number_is_finite():
    """Its square is not: a veto on the device must not take it for what it is not."""
    large = torch.full((5,), 3e38)
    bad = torch.tensor([0.0, math.nan, 1.0])
    empty, wide = torch.empty(0, 3), torch.full((2, 2), 1e300, dtype=torch.float64)
    assert finite_norms([large, bad, -large, empty]).tolist() == [True, False, True]
    assert finite_norms([wide, large, -math.inf * large]).tolist() == [True, True, False]
    assert first_nonfinite([("large", large), ("none", empty)]) is None
    assert first_nonfinite([("large", large), ("bad", bad)]) == "1 of 3 numbers in `bad`"


@pytest.mark.parametrize("form", ["critic", "budget"])
def test_outcomes_that_a_graph_finds_are_those_of_the_host(form, monkeypatch):
    """Where the host looks in the middle, too, it reads the window with the predicted tail."""
    monkeypatch.setattr(graphs, "Graph", Replayed)
    plain, placed = pair(**{**LIMIT, "risk.form": form})
    placed.risk._recorder = Recorder(captured=True)
    placed._epochs = None
    for _ in range(4):
        one = plain.update()
        two = placed.update()
        assert differing(state_of(plain), state_of(placed)) == []
        assert two.risk.predicted == pytest.approx(one.risk.predicted, rel=1e-5)
        assert two.risk.tail == one.risk.tail
    assert "outcomes" in placed.risk._recorder._known


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("changes", [{}, {**UPGD, "kl.target_kl": 0.01}], ids=["plain", "stop"])
def test_epochs_through_a_graph_are_plain_ones(changes, epochs, monkeypatch):
    """A graph runs its minibatch twice before: in no row of the table, at no place of the order.

    Of 8 sequences in parts of 3 the last has 2, and is recorded while the others are under way.
    """

    class Warmed(Replayed):
        def __init__(self, function, generators):
            states = [each.get_state() for each in generators]
            function()
            function()
            for each, state in zip(generators, states, strict=True):
                each.set_state(state)
            super().__init__(function, generators)

    monkeypatch.setattr(device_epochs, "Graph", Warmed)
    plain, placed = pair(**changes, **{"ppo.n_epochs": epochs})
    entropy = placed.generators.stream("entropy")
    placed._epochs = DeviceEpochs(
        placed.agent, placed.pipeline, placed.config, entropy, captured=True
    )
    for _ in range(4):
        one, two = plain.update(), placed.update()
        assert one.learned.divergence == two.learned.divergence
        assert differing(state_of(plain), state_of(placed)) == []


class _Outside(TorchDispatchMode):
    """Storages that operations read and that none of them made."""

    def __init__(self):
        super().__init__()
        self.read, self._made, self._kept = {}, set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.lift_fresh.default:  # a constant, which a graph holds
            for part in tree_leaves((args, kwargs)):
                self._look(part)
        for part in tree_leaves(made):
            if isinstance(part, torch.Tensor):
                self._kept.append(part)  # so that no address is used again
                self._made.add(part.untyped_storage()._cdata)
        return made

    def _look(self, part):
        if not isinstance(part, torch.Tensor) or part.numel() == 0:
            return
        storage = part.untyped_storage()
        if storage._cdata not in self._made:
            self.read.setdefault(storage._cdata, (StorageWeakRef(storage), tuple(part.shape)))


@pytest.mark.parametrize("changes", [{}, LIMIT], ids=["no limit", "budget"])
def test_what_a_graph_reads_outlives_its_recording(changes, monkeypatch):
    """A graph keeps addresses and no tensor: what it reads must be held by somebody else."""
    read = {}

    class Forgetful:
        def __init__(self, function, _):
            with _Outside() as seen:
                self.result = function()
            read.setdefault(function.__qualname__, []).extend(seen.read.values())

        def __call__(self):
            return self.result

    monkeypatch.setattr(graphs, "Graph", Forgetful)
    monkeypatch.setattr(device_epochs, "Graph", Forgetful)
    _, ppo = pair(**{**UPGD, "vgs.enabled": True, "ppo.advantage_scale": "slow", **changes})
    ppo.recorder = Recorder(captured=True)
    if ppo.risk is not None:
        ppo.risk._recorder = Recorder(captured=True)
    ppo._epochs = DeviceEpochs(
        ppo.agent, ppo.pipeline, ppo.config, ppo.generators.stream("entropy"), captured=True
    )
    metrics(ppo, ppo.update())
    gc.collect()
    lost = {
        name: [shape for storage, shape in found if storage.expired()]
        for name, found in read.items()
    }
    assert len(read) >= 2
    assert sum(len(found) for found in read.values()) > 50
    assert not any(lost.values()), lost
