"""Captured rollouts and minibatches: the numbers of eager ones, no host sync, exact resume."""

import contextlib
import gc
import math
import threading
import time
import warnings
from typing import NamedTuple

import pytest
import torch

from stormsail.algorithms import ppo as order_of_an_update
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo, Unprepared
from stormsail.algorithms.risk import control
from stormsail.algorithms.run import checkpoint
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import assessment, device_epochs, graphs
from stormsail.algorithms.update.device_epochs import COEFFICIENTS
from stormsail.algorithms.update.graphs import (
    Recorder,
    epochs_obstacle,
    rollout_obstacle,
    waiting_allowed,
)
from stormsail.algorithms.update.nonfinite import Diverged
from stormsail.core import turns
from stormsail.core.errors import DataError
from stormsail.core.generators import Generators
from stormsail.core.machine_code.graph_inputs import move_into
from stormsail.modules.agent import Agent
from stormsail.tasks.registry import make

SMALL = {
    "task.name": "CartPole-v1", "ppo.n_envs": 8, "ppo.n_steps": 16, "ppo.sequence_length": 8,
    "ppo.batch_size": 6, "ppo.n_epochs": 3, "network.lstm_hidden_size": 16,
    "network.encoder_sizes": (8,), "network.head_sizes": (8,), "critic.num_quantiles": 8,
    "observation.warmup_steps": 0, "ppo.learning_rate": 1e-3, "validation.every_updates": 0,
    "compile_update": False,
}  # fmt: skip
VARIANTS = {
    "CartPole": {},
    "Pendulum": {"task.name": "Pendulum-v1"},
    "early stop": {"kl.target_kl": 1e-4, "kl.kl_absolute_stop_factor": 1e3},
    "scaler": {"vgs.enabled": True, "vgs.warmup_steps": 2},
    "compiled, scaler": {"vgs.enabled": True, "vgs.reference": "absolute"},
    "AdamW": {"optimizer.optimizer_class": "AdamW"},
    "plain step": {"optimizer.compiled": False},
    "parts": {"ppo.microbatch_size": 2},
}


def settings(device="cuda", **changes):
    return derive(
        TrainConfig().replace(device=device, **{**SMALL, "precision": "float32"} | changes)
    )


def learner(config):
    task = make_task(config, batch=config.ppo.n_envs)
    agent = Agent(agent_spec(config, task), Generators(config.seed).stream("weights"))
    generators = Generators(config.seed, device=config.device)
    return Ppo(task, agent.to(config.device), config, generators)


def state_of(ppo):
    """Return every tensor of a learner's state by its path."""
    from stormsail.algorithms.update.nonfinite import tensors_of

    return {
        name: value.clone()
        for name, value in tensors_of(checkpoint.learner_state(ppo), "state")
        if "/lr" not in name
    }


def test_a_task_that_steps_on_the_host_and_statistics_of_every_step_are_not_captured():
    config = settings("cpu")
    task = make("CartPole-v1", batch=2)
    assert rollout_obstacle(task, config) is None
    online = config.replace(**{"observation.obs_stats_update": "online"})
    assert rollout_obstacle(task, online) == "`observation.obs_stats_update` is `online`"
    forging = config.replace(**{"adversary.mode": "rollout"})
    assert rollout_obstacle(task, forging).startswith("an adversary forges")
    assert rollout_obstacle(task, forging.replace(**{"adversary.epsilon": 0.0})) is None
    task.is_capturable = False
    assert rollout_obstacle(task, config) == "the task `CartPole-v1` steps on the host"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({"ppo.nonfinite_policy": "skip"}, None),
        ({"ppo.nonfinite_policy": "raise"}, "`ppo.nonfinite_policy` is `raise`"),
        ({"adversary.mode": "mixed_batch"}, "an adversary"),
        ({"adversary.mode": "mixed_batch", "adversary.adversarial_ratio": 0.0}, None),
        ({"adversary.mode": "kl_reg", "adversary.epsilon": 0.0}, None),
        ({"adversary.mode": "rollout"}, None),
        (
            {"vgs.enabled": True, "vgs.statistic": "microbatch", "ppo.microbatch_size": 2},
            "`vgs.statistic` is `microbatch`",
        ),
    ],
)
def test_what_looks_at_every_minibatch_is_not_captured(changes, found):
    obstacle = epochs_obstacle(settings("cpu", **changes))
    assert (obstacle is None) if found is None else obstacle.startswith(found)


def test_a_learner_on_the_cpu_captures_nothing_and_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ppo = learner(settings("cpu"))
        ppo.update()
    assert (ppo._epochs, ppo._rollouts) == (None, None)
    assert all(isinstance(group["lr"], float) for group in ppo.optimizer.param_groups)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_captured_updates_are_eager_updates(changes):
    captured = learner(settings(**changes))
    eager = learner(settings(cuda_graphs="off", **changes))
    for _ in range(4):
        one, two = captured.update(), eager.update()
        assert torch.equal(one.rollout.raw_action, two.rollout.raw_action)
        assert torch.equal(one.rollout.reward, two.rollout.reward)
        assert one.learned.stopped == two.learned.stopped
        assert len(one.learned.minibatches) == len(two.learned.minibatches)
        for a, b in zip(captured.agent.parameters(), eager.agent.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        own, other = (each.generators.state() for each in (captured, eager))
        assert own.keys() == other.keys()
        assert all(torch.equal(own[name], other[name]) for name in own)
        told, wanted = metrics(captured, one), metrics(eager, two)
        assert told.keys() == wanted.keys()
        for name, value in wanted.items():
            same = math.isnan(value) and math.isnan(told[name])
            assert same or told[name] == pytest.approx(value, rel=1e-2, abs=1e-3), name
    assert captured._rollouts is not None
    assert captured._epochs is not None


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*COEFFICIENTS, "learning_rate"])
def test_a_captured_minibatch_sees_every_number_change(name):
    ppo = learner(settings(**{"ppo.n_epochs": 1}))
    update = ppo.update()
    data = ppo._epochs._data
    # a clip range that a few steps of the policy leave, so that a wider one is another step
    now = update.now._replace(
        clip_range=1e-3, bc_coef=0.1, kl_beta=0.1, ent_coef=0.1, legacy_risk=0.1
    )
    before = {key: value.clone() for key, value in ppo.agent.state_dict().items()}

    def learned(now, rate):
        ppo.agent.load_state_dict(before)
        for state in ppo.optimizer.state.values():
            for value in state.values():
                value.zero_()
        for stream in ("minibatches", "optimizer.noise"):
            ppo.generators.stream(stream).manual_seed(1)
        ppo._set_rate(rate)
        ppo._epochs.learn(
            data, ppo.kl, now, order=ppo.generators.stream("minibatches"),
            on_refusal=lambda *_: None,
        )  # fmt: skip
        return torch.cat([weight.detach().flatten() for weight in ppo.agent.parameters()])

    first = learned(now, 1e-3)
    made = dict(ppo._epochs._minibatches)
    torch.testing.assert_close(learned(now, 1e-3), first, rtol=1e-4, atol=1e-6)
    changed = now if name == "learning_rate" else now._replace(**{name: 3.0 * getattr(now, name)})
    other = learned(changed, 3e-3 if name == "learning_rate" else 1e-3)
    assert ppo._epochs._minibatches == made
    assert float((other - first).abs().max()) > 1e-5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_an_update_never_waits_for_the_device_but_to_read_what_it_found():
    ppo = learner(settings())
    for _ in range(3):
        ppo.update()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ppo.update()
        with waiting_allowed():
            torch.zeros(1, device="cuda").cpu()
        with pytest.raises(RuntimeError, match="synchronizing"):
            torch.zeros(1, device="cuda").cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")


LIMIT = {
    "risk.cvar_use_constraint": True, "risk.cvar_limit": 5.0, "risk.cvar_min_samples": 2,
    "risk.cvar_min_tail_samples": 1,
}  # fmt: skip
WAITS = {  # settings, times that an update reads its numbers, and waits besides
    "none": ({}, 1, 0),
    "budget": ({**LIMIT, "risk.form": "budget"}, 1, 0),
    "critic": (LIMIT, 4, 3),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("changes", "reads", "most"), WAITS.values(), ids=WAITS)
def test_a_whole_update_waits_for_the_device_so_often(changes, reads, most, monkeypatch):
    """Once, at its end; a limit whose critic learns looks at its outcomes besides."""
    ppo, allowed = learner(settings(**changes)), []
    for _ in range(4):
        ppo.update()

    @contextlib.contextmanager
    def counted():
        allowed.append(1)
        with waiting_allowed():
            yield

    for module in (assessment, device_epochs, order_of_an_update, control):
        monkeypatch.setattr(module, "waiting_allowed", counted)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            ppo.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in found if "synchronizing" in str(each.message)]
    assert len(allowed) == reads
    assert len(waits) <= most, [f"{each.filename}:{each.lineno}" for each in waits]


@pytest.mark.gpu
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resumed_learner_computes_what_it_would_have(after):
    """20 kills of whole processes are in the fault tests; here every tensor is compared."""
    config = settings(**{"vgs.enabled": True, "kl.target_kl": 0.01})
    ppo = learner(config)
    for _ in range(after):
        ppo.update()
    saved = checkpoint.pack(checkpoint.learner_state(ppo), config, {})
    state = {
        part: checkpoint.unflatten(tree, saved.tensors.get(part, {}))
        for part, tree in saved.documents["state"].items()
    }
    state = torch.utils._pytree.tree_map(
        lambda value: value.clone() if isinstance(value, torch.Tensor) else value, state
    )
    resumed = learner(config)
    checkpoint.restore_learner(resumed, state)
    for _ in range(3):
        ppo.update()
        resumed.update()
        own, other = state_of(ppo), state_of(resumed)
        assert own.keys() == other.keys()
        assert all(torch.equal(own[name], other[name]) for name in own)


class Finished:
    """An event of a device that ends what it was given when it is waited for."""

    noted: list[str]

    def __init__(self, *, blocking):
        assert blocking  # a member that waits leaves the processor to the others

    def record(self):
        self.noted.append("recorded" + " with the turn" * turns.has_turn())

    def synchronize(self):
        self.noted.append("waits" + " with the turn" * turns.has_turn())


@pytest.fixture
def device(monkeypatch):
    """Let torch say that it has a device whose events are noted."""
    Finished.noted = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Event", Finished)
    return torch.device("cuda")


def test_a_member_gives_up_its_turn_until_the_device_is_done(device):
    own = turns.Turns()
    with own.joined(), turns.taken(device):
        with waiting_allowed():
            Finished.noted.append("reads" + " with the turn" * turns.has_turn())
            with waiting_allowed():
                Finished.noted.append("reads more")
        assert turns.has_turn()
    wait = ["recorded with the turn", "waits"]
    assert Finished.noted == [*wait, "reads with the turn", *wait, "reads more"]


def test_a_learner_that_trains_alone_waits_where_it_reads(device):
    with waiting_allowed():
        pass
    own = turns.Turns()
    with own.joined(), waiting_allowed():  # between its updates a member has no turn
        pass
    assert Finished.noted == []


def test_others_run_while_a_member_waits_for_the_device(device, monkeypatch):
    own, ran = turns.Turns(), threading.Event()

    def synchronize(self):
        assert ran.wait(30)

    monkeypatch.setattr(Finished, "synchronize", synchronize)

    def other():
        with own.joined(), turns.taken(device):
            ran.set()

    thread = threading.Thread(target=other)
    with own.joined(), turns.taken(device):
        thread.start()
        with waiting_allowed():
            pass
    thread.join(30)


def test_who_waits_to_record_gives_up_its_turn():
    """Whoever records may need it: a part that cannot be recorded may wait for the device."""
    own, holds, done = turns.Turns(), threading.Event(), []

    def records():
        with own.joined(), turns.taken(torch.device("cuda")), graphs._recording():
            with turns.given_up():
                holds.set()
                time.sleep(0.05)
            done.append("first")

    thread = threading.Thread(target=records)
    thread.start()
    assert holds.wait(30)
    with own.joined(), turns.taken(torch.device("cuda")), graphs._recording():
        done.append("second")
    thread.join(30)
    assert done == ["first", "second"]
    assert not graphs._RECORDING.locked()


@pytest.mark.gpu
def test_a_graph_outlives_another_one_that_is_destroyed():
    """Its products read a workspace, which must not be freed with that of the other graph."""
    wide = {"precision": "bf16", "ppo.n_envs": 512, "ppo.batch_size": 256, "ppo.n_steps": 32}
    wide |= {"network.lstm_hidden_size": 256, "ppo.sequence_length": 32}
    kept = learner(settings(**wide))
    kept.update()
    other = learner(settings(**wide))
    other.update()
    del other
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    taken = [torch.full((1 << 24,), torch.nan, device="cuda") for _ in range(8)]
    for _ in range(3):
        update = kept.update()
        torch.cuda.synchronize()
        assert all(bool(report.gradient.stepped) for report in update.learned.minibatches)
    assert len(taken) == 8
    assert all(bool(weight.isfinite().all()) for weight in kept.agent.parameters())


class Pair(NamedTuple):
    rows: torch.Tensor
    factor: torch.Tensor
    name: str | None = None


def test_a_recorder_refuses_numbers_that_a_graph_would_keep():
    recorder = Recorder(captured=False)
    x = torch.ones(2)
    assert torch.equal(recorder("sums", lambda given: given["x"] * 2.0, {"x": x}), x * 2.0)
    with pytest.raises(TypeError, match="must be a tensor"):
        recorder("sums", lambda given: given["x"] * given["by"], {"x": x, "by": 2.0})


def test_only_what_is_not_in_place_is_copied_there():
    places = [torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.arange(4.0)]
    kept = places[2].clone()
    move_into(places, [torch.ones(3), torch.tensor([4, 5]), places[2]])
    assert torch.equal(places[0], torch.ones(3))
    assert places[1].tolist() == [4, 5]
    assert torch.equal(places[2], kept)


class Replayed:
    """A graph of a machine without any: every call runs the function with what it was made of."""

    made = 0

    def __init__(self, function, _):
        type(self).made += 1
        self.function = function

    def __call__(self):
        return self.function()


def test_a_recorded_function_sees_every_tensor_change_and_is_recorded_anew_for_flags(monkeypatch):
    monkeypatch.setattr(graphs, "Graph", Replayed)
    monkeypatch.setattr(Replayed, "made", 0)
    recorder = Recorder(captured=True)

    def scaled(given):
        rows = given.rows * given.factor
        return -rows if given.name else rows

    def call(size, value, factor, name=None):
        given = Pair(torch.full((size,), value), torch.tensor(factor), name)
        return recorder("rows", scaled, given).tolist()

    assert call(2, 1.0, 1.0) == [1.0, 1.0]
    assert call(2, 3.0, 1.0) == [3.0, 3.0]
    assert call(2, 1.0, 2.0) == [2.0, 2.0]
    assert Replayed.made == 1
    assert call(2, 1.0, 1.0, "-") == [-1.0, -1.0]
    assert call(3, 1.0, 1.0) == [1.0, 1.0, 1.0]
    assert Replayed.made == 3


def test_what_a_function_writes_to_be_recorded_is_put_back(monkeypatch):
    class Warmed(Replayed):
        def __init__(self, function, _):
            function()
            super().__init__(function, _)

    monkeypatch.setattr(graphs, "Graph", Warmed)
    recorder, made = Recorder(captured=True), [torch.ones(2)]

    def add(x):
        if len(made) == 1:
            made.append(torch.zeros(2))
        for total in made:
            total.add_(x)
        return made[0].sum()

    def total(value):
        return float(recorder("sums", add, torch.full((2,), value), writes=lambda: made))

    assert total(1.0) == 4.0
    assert total(10.0) == 24.0
    assert made[1].tolist() == [11.0, 11.0]


def test_two_tensors_that_were_one_at_first_have_places_of_their_own(monkeypatch):
    monkeypatch.setattr(graphs, "Graph", Replayed)
    recorder = Recorder(captured=True)
    one = torch.ones(2)
    nest = {"pair": (one, one), "more": [Pair(one, one)]}

    def gaps(given):
        first, second = given["pair"]
        return torch.cat((first - second, given["more"][0].rows - given["more"][0].factor))

    assert recorder("gaps", gaps, nest).tolist() == [0.0, 0.0, 0.0, 0.0]
    other = {"pair": (one, 3.0 * one), "more": [Pair(5.0 * one, 4.0 * one)]}
    assert recorder("gaps", gaps, other).tolist() == [-2.0, -2.0, 1.0, 1.0]
    assert one.tolist() == [1.0, 1.0]


def test_what_cannot_be_recorded_runs_with_one_line(monkeypatch):
    class Impossible:
        def __init__(self, *_):
            raise RuntimeError("it reads a value\nand more")

    monkeypatch.setattr(graphs, "Graph", Impossible)
    recorder = Recorder(captured=True)
    with pytest.warns(UserWarning, match="sums run without CUDA graphs.*: it reads a value$"):
        assert recorder("sums", lambda x: float(x.sum()), torch.ones(2)) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recorder("sums", lambda x: float(x.sum()), torch.ones(3)) == 3.0


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_a_graph_is_recorded(collects):
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with graphs.without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.gpu
def test_a_graph_that_nobody_needs_may_be_garbage_while_another_is_recorded():
    x = torch.ones(3, device="cuda")
    cycle = [graphs.Graph(lambda: x + 1.0, [])]
    cycle.append(cycle)
    del cycle
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        made = graphs.Graph(lambda: [{"sum": x + 2.0} for _ in range(50)], [])
    finally:
        gc.set_threshold(*before)
    assert made()[-1]["sum"].tolist() == [3.0] * 3


@pytest.mark.gpu
def test_what_cannot_be_recorded_draws_on_where_it_was():
    one, two = (torch.Generator("cuda").manual_seed(3) for _ in range(2))

    def reads():
        return float(torch.rand(5, device="cuda", generator=one).sum())

    with pytest.raises(RuntimeError):
        graphs.Graph(reads, [one])
    drawn = (torch.rand(5, device="cuda", generator=each) for each in (one, two))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("critic", ["quantile", "categorical"])
def test_updates_through_places_are_plain_updates(critic, monkeypatch):
    """What is recorded reads nothing but its places: with them alone the same numbers come out."""
    monkeypatch.setattr(graphs, "Graph", Replayed)
    changes = {"critic.kind": critic, "vgs.enabled": True, "ppo.advantage_scale": "slow"}
    plain, placed = (learner(settings("cpu", **changes)) for _ in range(2))
    placed.recorder = Recorder(captured=True)
    for _ in range(3):
        one, two = plain.update(), placed.update()
        told, wanted = metrics(placed, two), metrics(plain, one)
        assert told.keys() == wanted.keys()
        for name, value in wanted.items():
            assert told[name] == value or (math.isnan(value) and math.isnan(told[name])), name
    own, other = state_of(plain), state_of(placed)
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_check_of_the_state_sees_a_number_of_every_part(device):
    ppo = learner(settings(device, **{"vgs.enabled": True, "ppo.advantage_scale": "slow"}))
    for _ in range(3):
        entropy = ppo.update().learned.minibatches.sums.entropy
        assert all(bool(flag) for flag in checkpoint.state_flags(ppo, entropy))
    assert ("the check of the state" in ppo.recorder._known) is (device == "cuda")
    parts = [*ppo.agent.parameters(), *ppo.agent.buffers(), *ppo.pipeline.scaler.floating_state()]
    parts += [ppo.env_state.return_so_far, ppo.env_state.memory, *ppo.advantage_moments, entropy]
    parts += [x for own in ppo.optimizer.state.values() for x in own.values()]
    for part in parts:
        if not (part.is_floating_point() and part.numel()):
            continue
        first = part.detach()[(0,) * part.ndim]
        kept = first.clone()
        for bad in (math.nan, -math.inf):
            first.fill_(bad)
            assert not all(bool(flag) for flag in checkpoint.state_flags(ppo, entropy))
        first.copy_(kept)
    assert all(bool(flag) for flag in checkpoint.state_flags(ppo, entropy))


@pytest.mark.gpu
def test_estimates_and_metrics_are_captured_and_see_every_number_change():
    ppo = learner(settings(**{"vgs.enabled": True, "ppo.advantage_scale": "slow"}))
    for _ in range(3):
        update = ppo.update()
        metrics(ppo, update)
    assert set(ppo.recorder._known) == {
        "estimates", "sequences", "metrics", "metrics of the scaler",
    }  # fmt: skip
    rollout = update.rollout
    before = ppo._assess(rollout).estimates
    value, mean = before.value.clone(), float(before.returns.mean())
    ppo.agent.return_scale.mean += 1.0
    shifted = ppo._assess(rollout)
    torch.testing.assert_close(shifted.estimates.value, value + 1.0)
    rollout.reward.add_(10.0)
    assert float(ppo._assess(rollout).estimates.returns.mean()) > mean + 5.0
    raw = shifted.estimates.raw_advantage.clone()

    def normal():
        options = (None, ppo.advantage_moments, False, True)
        return ppo._prepare(Unprepared(rollout, shifted, raw, *options)).normal.advantage

    first = normal().clone()
    ppo.advantage_moments = ppo.advantage_moments._replace(
        variance=ppo.advantage_moments.variance * 100.0
    )
    second = normal()
    assert float(second.abs().max()) < 0.5 * float(first.abs().max())
    told = metrics(ppo, update)
    rollout.reward.add_(10.0)
    again = metrics(ppo, update)
    assert again["rollout/reward_mean"] == pytest.approx(told["rollout/reward_mean"] + 10.0)
    ppo.agent.return_scale.std *= 2.0
    last = metrics(ppo, update)
    assert last["train/ret_std"] == pytest.approx(2.0 * again["train/ret_std"])


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["reward", "predicted"])
def test_a_captured_estimate_tells_what_is_not_finite(place):
    ppo = learner(settings())
    update = ppo.update()
    getattr(update.rollout, place).view(-1)[3] = math.inf
    with pytest.raises((DataError, Diverged), match="1 of"):
        ppo._known(update.rollout, ppo._assess(update.rollout))


@pytest.mark.gpu
def test_a_captured_update_of_what_is_not_finite_changes_nothing_and_is_told():
    ppo = learner(settings(**{"ppo.advantage_scale": "slow"}))
    for _ in range(3):
        ppo.update()
    before, collect = state_of(ppo), ppo._collect

    def spoilt():
        env_state, rollout = collect()
        rollout.reward.view(-1)[3] = math.nan
        return env_state, rollout

    ppo._collect = spoilt
    with pytest.raises(DataError, match="1 of"):
        ppo.update()
    after = state_of(ppo)
    streams = {f"state/generators/torch:{name}" for name in ("actions", "task")}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name in changed if not name.startswith("state/env_state")} <= streams
    ppo._collect = collect
    ppo.update()
