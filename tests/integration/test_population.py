"""Populations as a whole: rounds, copies, read-back, kills and resumption, tiny and NaN members."""

import json
import math
import time

import pytest
import torch

import population_jobs
from population_lab import (
    INTERVAL,
    MEMBERS,
    RATE,
    UPDATES,
    Calling,
    Dying,
    Killed,
    exploit,
    image,
    plan,
    states,
    trained,
)
from stormsail.algorithms import trainer as trainer_module
from stormsail.algorithms.population import member as member_module
from stormsail.algorithms.population import population as population_module
from stormsail.algorithms.population.config import (
    PopulationConfig,
    RunFile,
    load_training,
    value_of,
)
from stormsail.algorithms.population.engines.in_process import InProcess
from stormsail.algorithms.population.engines.processes import Processes
from stormsail.algorithms.population.exploit import exploited_learner
from stormsail.algorithms.population.jobs import Job
from stormsail.algorithms.population.member import advance, first_config
from stormsail.algorithms.population.population import train_population
from stormsail.algorithms.population.readback import read_back
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run import folder as folder_module
from stormsail.algorithms.run.folder import RunFolder, read_config, read_lineage
from stormsail.algorithms.run.tasks import binding, make_task
from stormsail.algorithms.run.trials import LEDGER
from stormsail.algorithms.trainer import Trainer, train
from stormsail.core import turns
from stormsail.core.errors import ConfigError, InvariantError, StormsailError, WorkerError
from stormsail.evaluation.populations import Copy, read_population
from stormsail.evaluation.stats.trials import TrialLedger
from training_lab import small


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A population that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "pop"
    return train_population(plan(), out=out)


@pytest.fixture
def unchecked(monkeypatch):
    """Do not build learners for the ends of every range: a test of its own does."""
    monkeypatch.setattr(population_module, "check_search", lambda *_: None)


def copies_of(run):
    return [(round_.number, one) for round_ in run.rounds for one in round_.decisions if one.copies]


def test_every_round_the_worst_copies_the_best_and_nobody_else_changes(whole):
    assert len(copies_of(whole)) == len(whole.rounds) - 1 == 2
    values = dict.fromkeys(range(MEMBERS))
    for round_ in whole.rounds[:-1]:
        order = sorted(range(MEMBERS), key=lambda member: (-round_.fitness[member], member))
        for one in round_.decisions:
            if one.member == order[-1]:
                assert one.source == order[0]
                assert one.explored
            else:
                assert one.source == one.member
                assert not one.explored
                assert values[one.member] in (None, one.values)
            values[one.member] = one.values


def test_a_report_reads_what_the_population_wrote(whole):
    saved = read_population(whole.path)
    assert saved.best == whole.best
    assert [round_.fitness for round_ in saved.rounds] == [one.fitness for one in whole.rounds]
    copied = [Copy(number + 1, one.source, one.member) for number, one in copies_of(whole)]
    assert saved.copies() == copied
    searched = plan().searched()
    for member, values in enumerate(saved.rounds[0].values):
        first = first_config(plan().training(), searched, member)
        assert values == {path: value_of(first, path) for path in searched.search}
    for before, after in zip(whole.rounds[:-1], saved.rounds[1:], strict=True):
        assert [dict(one.values) for one in before.decisions] == list(after.values)


def test_a_member_that_never_copied_is_an_ordinary_training(whole, tmp_path):
    copied = {one.member for _, one in copies_of(whole)}
    member = min(set(range(MEMBERS)) - copied)
    config = first_config(plan().training(), plan().searched(), member)
    run = train(config, out=tmp_path / f"{member:02d}", tensorboard=False)
    own = whole.path / "members" / f"{member:02d}"
    for name in ("metrics.parquet", "events.jsonl"):
        assert (run.path / name).read_bytes() == (own / name).read_bytes()


def test_the_log_names_the_rate_that_the_learner_used(whole):
    lines = (whole.path / "logs" / "pbt_training.log").read_text().splitlines()
    config = plan()
    wanted = []
    for number, one in copies_of(whole):
        share = (number + 1) * INTERVAL * 32 / config.ppo.total_steps
        rate = one.values[RATE] * (1.0 - share)
        wanted.append(
            f"round {number + 1}: Member {one.member}: Using NEW learning rate from PBT: {rate:.2e}"
        )
    assert lines == wanted


def test_lineage_and_settings_of_a_copy_are_in_its_folder(whole):
    number, one = copies_of(whole)[-1]
    place = whole.path / "members" / f"{one.member:02d}"
    last = read_lineage(place).copies[-1]
    source = whole.rounds[number].outcomes[one.source]
    assert (last.round, last.member, last.digest) == (number + 1, one.source, source.digest)
    assert last.new == dict(one.values)
    config = read_config(place)
    assert config.ppo.learning_rate == one.values[RATE]
    assert config.ppo.clip_range == one.values["ppo.clip_range"]
    assert config.kl.use_ema == one.values["kl.use_ema"]


def test_all_trials_are_in_the_ledger_of_the_workspace(whole):
    counted = TrialLedger(whole.path.parent / LEDGER).read().counted()
    assert len(counted) == MEMBERS + len(copies_of(whole))
    names = {trial.name for trial in counted}
    assert names == {f"pop/{member:02d}" for member in range(MEMBERS)}


def test_the_manifest_of_each_member_names_its_line_of_the_ledger(whole):
    lines = {one.number: one for one in TrialLedger(whole.path.parent / LEDGER).read().trials}
    for member in range(MEMBERS):
        manifest = whole.path / "members" / f"{member:02d}" / "manifest.json"
        mark = json.loads(manifest.read_text())["trials"]
        assert mark["ledger"] == f"../../../{LEDGER}"
        assert mark["hash"] == lines[mark["line"]].hash
        assert (lines[mark["line"]].name, lines[mark["line"]].status) == (
            f"pop/{member:02d}",
            "started",
        )


def test_metrics_are_those_of_the_ledger(whole):
    from stormsail.monitors.sinks import MetricsFile

    file = MetricsFile(whole.path / "metrics.parquet", rows=3)
    for round_, row in zip(whole.rounds, map(file.row, range(3)), strict=True):
        mean = sum(round_.fitness) / MEMBERS
        spread = math.sqrt(sum((one - mean) ** 2 for one in round_.fitness) / MEMBERS)
        copies = sum(one.copies for one in round_.decisions)
        assert row == pytest.approx(
            {
                "pbt/population_size": MEMBERS,
                "pbt/ready_members": MEMBERS,
                "pbt/mean_performance": mean,
                "pbt/std_performance": spread,
                "pbt/min_performance": min(round_.fitness),
                "pbt/max_performance": max(round_.fitness),
                "pbt/exploitation_count": copies,
                "pbt/exploration_count": copies,
            },
            abs=1e-12,
        )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("jobs", [1, 4, 6])
def test_a_killed_driver_goes_on_with_the_same_bits(whole, tmp_path, jobs):
    out = tmp_path / "pop"
    with pytest.raises(Killed):
        train_population(plan(), out=out, engine=Dying(jobs))
    train_population(plan(), out=out)
    assert image(out) == image(whole.path)


@pytest.mark.usefixtures("unchecked")
def test_members_side_by_side_have_the_same_bits(whole, tmp_path):
    train_population(plan(), out=tmp_path / "pop", engine=InProcess(workers=MEMBERS))
    assert image(tmp_path / "pop") == image(whole.path)


@pytest.mark.usefixtures("unchecked")
def test_members_that_take_turns_have_the_same_bits(whole, tmp_path, monkeypatch):
    """As on a GPU: updates one at a time, but for their waits; disk and evaluation meanwhile."""
    taken, update = turns.taken, Ppo.update
    save, evaluate = RunFolder.save, trainer_module.evaluate
    inside = []

    def alone(ppo):
        assert turns.has_turn()
        inside.append(ppo)
        assert inside == [ppo]
        done = update(ppo)
        inside.remove(ppo)
        with turns.given_up():  # a wait for the device
            time.sleep(0.001)
        return done

    def without(function):
        def call(*arguments, **options):
            assert not turns.has_turn()
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(turns, "taken", lambda _: taken(torch.device("cuda")))
    monkeypatch.setattr(Ppo, "update", alone)
    monkeypatch.setattr(RunFolder, "save", without(save))
    monkeypatch.setattr(trainer_module, "evaluate", without(evaluate))
    train_population(plan(), out=tmp_path / "pop", engine=InProcess(workers=MEMBERS - 1))
    assert image(tmp_path / "pop") == image(whole.path)


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked")
def test_members_that_share_a_gpu_have_the_same_bits(tmp_path):
    """More members than workers, graphs and kernels of several at a time."""
    config = plan(changes={"device": "cuda"}, perturbation_interval=UPDATES)
    train_population(config, out=tmp_path / "one", engine=InProcess())
    train_population(config, out=tmp_path / "beside", engine=InProcess(workers=MEMBERS - 1))
    assert image(tmp_path / "beside") == image(tmp_path / "one")


def killed_once(monkeypatch, owner, name, *, after):
    """Let the process die at a call, before or after it was done, the first time only."""
    real, calls = getattr(owner, name), []

    def dying(*args, **kwargs):
        calls.append(name)
        if len(calls) == 1:
            if after:
                real(*args, **kwargs)
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(RunFolder, "copy_over"), (folder_module, "_finish_copy"), (member_module, "fitness")],
)
def test_a_member_killed_in_its_copy_or_judgement_goes_on_with_the_same_bits(
    whole, tmp_path, monkeypatch, owner, name, after
):
    out = tmp_path / "pop"
    with pytest.raises(Killed):
        train_population(plan(), out=out, engine=Dying(3))
    with monkeypatch.context() as patch:
        killed_once(patch, owner, name, after=after)
        with pytest.raises(Killed):
            train_population(plan(), out=out)
    train_population(plan(), out=out)
    assert image(out) == image(whole.path)


@pytest.mark.usefixtures("unchecked")
def test_a_job_that_fails_is_handed_in_again(whole, tmp_path, monkeypatch):
    real, calls = Trainer.advance, []

    def failing(self):
        calls.append(1)
        if len(calls) == 3:
            raise OSError("a worker lost its disk")
        real(self)

    monkeypatch.setattr(Trainer, "advance", failing)
    run = train_population(plan(), out=tmp_path / "pop")
    assert image(run.path) == image(whole.path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.refusal
def test_a_job_that_keeps_failing_ends_the_population(tmp_path, monkeypatch):
    def failing(self):
        raise OSError("no disk")

    monkeypatch.setattr(Trainer, "advance", failing)
    with pytest.raises(StormsailError, match=r"member 0 .* must get through") as raised:
        train_population(plan(), out=tmp_path / "pop")
    assert raised.value.code == "member-failed"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("method", ["truncation", "binary_tournament"])
def test_tiny_populations_copy(tmp_path, size, method):
    config = plan(population_size=size, exploit_method=method, fitness_smoothing=0.0)
    scores = iter(range(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member_module, "fitness", lambda *_, **__: (float(next(scores)), {}))
        run = train_population(config, out=tmp_path / "pop")
    first = run.rounds[0].decisions
    if method == "truncation":
        assert [one.source for one in first] == [size - 1, *range(1, size)]
    else:
        assert first[-1].source == size - 1
        assert all(one.source >= one.member for one in first)
    assert run.best == size - 1


@pytest.mark.usefixtures("unchecked")
def test_a_member_that_keeps_diverging_is_copied_over_and_lives_again(tmp_path, monkeypatch):
    real = Trainer._measured
    from stormsail.algorithms.update.nonfinite import Diverged

    def poisoned(self, update):
        if self.folder.path.name == "01" and not self.folder.lineage.copies:
            raise Diverged("poison")
        return real(self, update)

    monkeypatch.setattr(Trainer, "_measured", poisoned)
    run = train_population(plan(population_size=2), out=tmp_path / "pop")
    first, second = run.rounds[0], run.rounds[1]
    assert math.isnan(first.outcomes[1].fitness)
    assert first.outcomes[1].stopped
    assert first.outcomes[1].updates == 0
    assert [one.source for one in first.decisions] == [0, 0]
    assert math.isfinite(second.outcomes[1].fitness)
    assert [outcome.updates for outcome in second.outcomes] == [4, 4]
    assert (
        json.loads((run.path / "population.jsonl").read_text().splitlines()[0])["fitness"][1]
        is None
    )


@pytest.mark.usefixtures("unchecked")
def test_resume_accepts_the_values_of_a_member(tmp_path):
    config = plan()
    with pytest.raises(Killed):
        train_population(config, out=tmp_path / "pop", engine=Dying(2 * MEMBERS))
    places = [tmp_path / "pop" / "members" / f"{member:02d}" for member in range(MEMBERS)]
    place = next(place for place in places if read_lineage(place).copies)
    values = read_lineage(place).copies[-1].new
    run = train(read_config(place), out=place, tensorboard=False)
    assert run.status == "finished"
    assert run.config.ppo.learning_rate == values[RATE]
    assert run.config.ppo.clip_range == values["ppo.clip_range"]


WIDE = {
    RATE: 2e-3, "ppo.learning_rate_final": 1e-4, "ppo.clip_range": 0.07, "ppo.vf_coef": 0.9,
    "ppo.max_grad_norm": 0.3, "ppo.gae_lambda": 0.8, "ppo.n_epochs": 3, "entropy.ent_coef": 0.003,
    "kl.target_kl": 0.03, "kl.beta_max": 0.5, "kl.use_ema": False, "returns.ema_beta": 0.7,
    "returns.window_updates": 4, "optimizer.beta1": 0.8, "optimizer.beta2": 0.99,
    "optimizer.sigma": 0.01, "optimizer.eps": 1e-4, "optimizer.weight_decay": 0.02,
    "optimizer.noise_scale": "rms_update", "vgs.alpha": 0.3, "vgs.min_scaling_factor": 0.7,
    "bc.awr_coef": 0.4, "risk.cvar_weight": 0.3, "risk.cvar_limit": -0.01, "risk.cvar_kp": 0.7,
    "critic.huber_kappa": 0.05, "critic.learning_rate_factor": 4.0, "target.steps": 4,
}  # fmt: skip
"""One new value for each kind of setting, and for every part that keeps settings of its own."""


@pytest.mark.parametrize("strategy", ["reset", "copy"])
def test_every_value_is_read_back_from_what_the_learner_uses(strategy):
    config = small(
        "market", vgs__enabled=True, critic__learning_rate_factor=2.0, risk__form="budget"
    )
    source, own = trained(config, 2), trained(config.replace(seed=6), 1)
    task = make_task(config, batch=config.ppo.n_envs)
    change = exploit(strategy, **WIDE)
    ppo = exploited_learner(
        config.replace(seed=6), task, binding(config), *states(source, own), change
    )
    used = read_back(ppo, WIDE)
    scheduled = {
        RATE,
        "ppo.learning_rate_final",
        "bc.awr_coef",
        "entropy.ent_coef",
        "ppo.clip_range",
        "ppo.vf_coef",
    }
    assert {path: used[path] for path in WIDE if path not in scheduled} == {
        path: value for path, value in WIDE.items() if path not in scheduled
    }
    done = source.steps / config.ppo.total_steps
    assert used[RATE] == pytest.approx(2e-3 + (1e-4 - 2e-3) * done, rel=1e-12)
    groups = ppo.optimizer.param_groups
    assert [group["lr"] for group in groups] == pytest.approx([used[RATE], 4.0 * used[RATE]])
    assert [group["betas"] for group in groups] == [(0.8, 0.99)] * 2
    assert ppo.update_count == source.update_count == 2
    assert ppo.risk.dual.multiplier == source.risk.dual.multiplier
    assert ppo.risk.window.sample().tolist() == source.risk.window.sample().tolist()
    ppo.update()
    read_back_after = {
        path: WIDE[path]
        for path in WIDE
        if path not in (RATE, "critic.learning_rate_factor", "ppo.learning_rate_final")
    }
    read_back(ppo, read_back_after)


def test_the_radius_of_the_adversary_is_read_back_from_the_schedule(monkeypatch):
    on = {"adversary__mode": "kl_reg", "adversary__epsilon": 0.2, "adversary__warmup_updates": 4}
    ppo = trained(small("cartpole", **on), 1)
    # the second of four updates in which it grows from 0
    assert read_back(ppo, {"adversary.epsilon": 0.2}) == {"adversary.epsilon": 0.2 * 0.25}
    scheduled = ppo.schedule()
    monkeypatch.setattr(ppo, "schedule", lambda: scheduled._replace(epsilon=0.0))
    with pytest.raises(InvariantError, match=r"`adversary\.epsilon` must be 0\.05 in the schedule"):
        read_back(ppo, {"adversary.epsilon": 0.2})


def test_streams_stay_the_members_own_and_memory_begins_anew():
    config = small("cartpole-lstm")
    source, own = trained(config, 2), trained(config.replace(seed=6), 2)
    source.rate_factor, source.refusals = 0.25, 2
    task = make_task(config, batch=config.ppo.n_envs)
    theirs, mine = states(source, own)
    change = exploit("copy", ppo__clip_range=0.1)
    ppo = exploited_learner(config.replace(seed=6), task, binding(config), theirs, mine, change)
    for name in ("actions", "minibatches", "optimizer.noise"):
        stream = f"torch:{name}"
        assert torch.equal(ppo.generators.state()[stream], mine["generators"][stream])
        assert not torch.equal(ppo.generators.state()[stream], theirs["generators"][stream])
    assert torch.count_nonzero(ppo.env_state.memory) == 0
    assert torch.count_nonzero(source.env_state.memory) > 0
    assert (ppo.rate_factor, ppo.refusals) == (1.0, 0)
    assert ppo.schedule().learning_rate == source.schedule().learning_rate / 0.25


@pytest.mark.refusal
@pytest.mark.parametrize("group", [0, 1])
def test_a_rate_that_missed_a_group_is_noticed(group):
    ppo = trained(small("cartpole", critic__learning_rate_factor=3.0), 1)
    ppo.apply_rate()
    assert read_back(ppo, {RATE: 1e-3})[RATE] == ppo.optimizer.param_groups[0]["lr"]
    ppo.optimizer.param_groups[group]["lr"] *= 1.5
    with pytest.raises(InvariantError, match=f"parameter group {group}"):
        read_back(ppo, {RATE: 1e-3})


@pytest.mark.refusal
def test_an_old_configuration_is_noticed():
    ppo = trained(small("cartpole"), 1)
    ppo.apply_rate()
    for path, value in ((RATE, 2e-3), ("kl.target_kl", 0.5), ("optimizer.eps", 1e-3)):
        with pytest.raises(InvariantError, match=path) as raised:
            read_back(ppo, {path: value})
        assert raised.value.code == "value-not-applied"


BAD = [
    ("network.lstm_hidden_size", {"min": 4, "max": 8}, {}, "changes the state of a learner"),
    ("ppo.n_steps", {"values": [8, 16]}, {}, "the task, the budget"),
    ("ppo.total_steps", {"min": 100, "max": 1000}, {}, "the task, the budget"),
    ("validation.episodes", {"min": 1, "max": 8}, {}, "how members are judged"),
    ("vgs.enabled", {"values": [False, True]}, {}, "changes the state of a learner"),
    ("risk.cvar_weight", {"min": 0.0, "max": 0.2}, {}, "changes the state of a learner"),
    (
        "optimizer.optimizer_class",
        {"values": ["AdaptiveUPGD", "UPGD"]},
        {"optimizer_exploit_strategy": "copy"},
        "changes the state of a learner",
    ),
]


@pytest.mark.refusal
@pytest.mark.parametrize(("path", "search", "options", "reason"), BAD, ids=[bad[0] for bad in BAD])
def test_settings_that_change_state_metrics_or_task_are_refused(
    tmp_path, path, search, options, reason
):
    config = plan("cartpole-lstm", search={path: search}, **options)
    with pytest.raises(ConfigError, match=reason) as raised:
        train_population(config, out=tmp_path / "pop")
    assert path in str(raised.value)
    assert not (tmp_path / "pop").exists()


def test_a_population_survives_the_trip_through_toml(tmp_path):
    config = plan(optimizer_exploit_strategy="copy", metric_mode="min", ready_percentage=0.5)
    path = tmp_path / "pop.toml"
    path.write_text(config.to_toml())
    again = RunFile.load(path)
    assert again == config
    assert again.searched().optimizer_exploit_strategy == "copy"
    assert load_training(path) == config.training()
    assert load_training(path).config_hash() == config.training().config_hash()


@pytest.mark.refusal
def test_what_a_population_does_not_know_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="optimizer_exploit_strategy"):
        plan(optimizer_exploit_stratgy="copy")
    with pytest.raises(ConfigError, match=r"did you mean `ppo.clip_range`"):
        plan(search={"ppo.clip_rang": {"min": 0.1, "max": 0.2}})
    for search in ({"min": 1.0}, {}, {"min": 0.1, "max": 0.2, "values": [0.1]}):
        with pytest.raises(ConfigError, match="either `min` and `max`, or `values`"):
            plan(search={"ppo.clip_range": search})
    with pytest.raises(ConfigError, match="above 0 on a log scale"):
        plan(search={"ppo.vf_coef": {"min": 0.0, "max": 1.0, "is_log_scale": True}})
    with pytest.raises(ConfigError, match="optimizer_lr_min"):
        plan(search={RATE: {"min": 1e-7, "max": 1e-3}})
    search = {RATE: {"min": 1e-4, "max": 1e-3, "resample_probability": 0.5}}
    with pytest.raises(ConfigError, match="resample_probability"):
        plan(search=search, explore_method="perturb")
    with pytest.raises(ConfigError, match="truncation_ratio"):
        plan(exploit_method="binary_tournament", truncation_ratio=0.1)
    with pytest.raises(ConfigError, match="must name one setting or more"):
        train_population(plan(search={}), out=tmp_path / "pop")


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("search", "found", "limits"),
    [
        ({"min": 1e-7, "max": 1e-3}, "1e-07", "`ppo.optimizer_lr_min` 5e-06 and at most"),
        ({"min": 1e-4, "max": 1e-2}, "0.01", "and at most `ppo.optimizer_lr_max` 0.005"),
        ({"values": [1e-4, 1e-2]}, "0.01", "and at most `ppo.optimizer_lr_max` 0.005"),
    ],
)
def test_rates_beyond_the_bounds_of_the_optimizer_are_refused(search, found, limits):
    bounds = {"ppo__optimizer_lr_max": 5e-3}
    assert plan(search={RATE: {"min": 5e-6, "max": 5e-3}}, changes=bounds).population is not None
    with pytest.raises(ConfigError, match="Narrow the search") as raised:
        plan(search={RATE: search}, changes=bounds)
    assert limits in str(raised.value)
    assert f"found {found}, which would be cut off there" in str(raised.value)


@pytest.mark.refusal
def test_another_population_in_the_folder_is_refused(whole):
    with pytest.raises(ConfigError, match=r"population.seed.* must stay"):
        train_population(plan(seed=1), out=whole.path)


def test_a_finished_population_is_left_as_it_is(whole):
    before = image(whole.path)
    again = train_population(plan(), out=whole.path)
    assert again.best == whole.best
    assert image(whole.path) == before


def test_a_job_done_twice_gives_the_same_outcome(whole):
    last = whole.rounds[-1]
    job = Job(0, last.number, whole.path, 6)
    outcome = advance(job)
    recorded = last.outcomes[0]
    assert outcome.digest == recorded.digest
    assert outcome.fitness == recorded.fitness


def test_defaults_are_those_of_the_documentation():
    config = PopulationConfig()
    assert (config.population_size, config.perturbation_interval) == (8, 10)
    assert (config.truncation_ratio, config.ready_percentage) == (0.25, 0.75)


@pytest.mark.usefixtures("unchecked")
def test_processes_train_the_same_population(whole, tmp_path):
    run = train_population(plan(), out=tmp_path / "pop", engine=Processes(workers=2))
    assert image(run.path) == image(whole.path)


@pytest.mark.usefixtures("unchecked")
def test_a_worker_killed_in_the_middle_of_a_training_changes_no_bit(whole, tmp_path):
    engine = Calling(Processes(workers=2), population_jobs.die_in_training)
    run = train_population(plan(), out=tmp_path / "pop", engine=engine)
    begins = [len(population_jobs.begun(job)) for job in population_jobs.jobs(run.path, 3)]
    assert begins == [len(run.rounds) + (member == 1) for member in range(3)]
    assert image(run.path) == image(whole.path)


@pytest.mark.refusal
@pytest.mark.usefixtures("unchecked")
def test_a_member_whose_workers_died_is_not_handed_in_again(tmp_path):
    class Lossy:
        """An engine whose workers die."""

        def __init__(self):
            self.runs = 0

        def run(self, _call, jobs):
            self.runs += 1
            for job in jobs:
                yield (
                    job,
                    WorkerError(
                        "worker-lost", wrong="a worker must live", found="none", remedy="Look."
                    ),
                )

        def close(self):
            pass

    engine = Lossy()
    with pytest.raises(WorkerError, match="a worker must live; found none"):
        train_population(plan(), out=tmp_path / "pop", engine=engine)
    assert engine.runs == 1
