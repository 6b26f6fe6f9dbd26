"""The repairs of all five audits at once, in one run of the real learner."""

import itertools
import math

import pytest
import torch

from learner_lab import ENDS, learner, script, settings
from population_lab import exploit, plan, states, trained
from stormsail.algorithms.population.exploit import exploited_learner
from stormsail.algorithms.population.population import train_population
from stormsail.algorithms.run.folder import read_config, read_lineage
from stormsail.algorithms.run.tasks import binding, make_task
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update import losses
from stormsail.functional import statistics
from training_lab import small

UPDATES = 6
CONFIG = settings(
    ppo__batch_size=4, ppo__microbatch_size=2, ppo__n_epochs=2, ppo__sequence_length=4,
    value_clip__clip_range_vf=0.2, value_clip__distributional_vf_clip_mode="mean_and_variance",
    vgs__enabled=True, vgs__warmup_steps=3, optimizer__optimizer_class="AdaptiveUPGD",
    network__enable_critic_lstm=True, returns__warmup_updates=2,
    entropy__ent_coef_plateau_window=2, entropy__ent_coef_plateau_min_updates=2,
    entropy__ent_coef_plateau_tolerance=1e3, entropy__ent_coef_decay_steps=2,
    entropy__ent_coef_min=0.004,
)  # fmt: skip


@pytest.fixture(scope="module")
def run():
    """What each update reported, and the drift of the observations computed beside it."""
    ppo = learner(CONFIG, told=script(ENDS, weights=(1.0, 0.5)))
    rows, drifts = [], []
    for _ in range(UPDATES):
        before = [part.clone() for part in ppo.agent.observation_scale.moments]
        update = ppo.update()
        after = ppo.agent.observation_scale.moments
        old = statistics.Moments(*before)
        spread = (old.m2 / old.count).sqrt()
        drifts.append(float(((after.mean - old.mean).abs() / spread).mean()))
        rows.append(metrics(ppo, update))
    return ppo, rows, drifts


def test_fixes_integration(run):
    _, rows, drifts = run
    for number, row in enumerate(rows):
        # S0-3, S2-3: what is decoded is what was encoded
        assert row["train/return_stats/decode_encode_mismatch"] == 0.0
        # S0-7, S2-7: both critics are watched, by norms and not by squares
        first, second = row["train/critic1_grad_norm"], row["train/critic2_grad_norm"]
        assert row["train/critics_grad_ratio"] == pytest.approx(first / second)
        # S4-O3: the clip is the last bound
        assert row["train/grad_norm_post_clip_max"] <= 0.5 + 1e-6
        # S4-V1: advantages are normalised once, over rows with weight
        assert row["train/advantages_norm_mean"] == pytest.approx(0.0, abs=1e-6)
        assert row["train/advantages_norm_std"] == pytest.approx(1.0, abs=1e-3)
        # S0-2, S2-2: 16 sequences in minibatches of 4, twice, each cut in two
        assert row["train/minibatches"] == row["train/optimizer_steps"] == 8.0
        assert row["train/grad_accum_steps"] == 2.0
        # S3-6: nothing was lost on the way
        assert row["train/log_ratio_nan_count"] == row["train/log_ratio_inf_count"] == 0.0
        assert row["debug/nonfinite_metrics"] == 0.0
        # S2-1: drift is measured in old deviations
        if number:
            assert row["debug/vecnormalize_mean_drift"] == pytest.approx(drifts[number], rel=1e-6)
    assert math.isnan(rows[0]["debug/vecnormalize_mean_drift"])


def test_the_entropy_coefficient_decays_once_and_keeps_its_floor(run):
    _, rows, _ = run
    starts = [row["train/entropy_decay_start_update"] for row in rows]
    assert starts == [-1.0, -1.0, 2.0, 2.0, 2.0, 2.0]
    nominal = [0.01, 0.01, 0.01, 0.0055, 0.001, 0.001]
    assert [row["train/ent_coef_nominal"] for row in rows] == pytest.approx(nominal)
    floored = [max(value, 0.004) for value in nominal]
    assert [row["train/ent_coef_eff"] for row in rows] == pytest.approx(floored)


def test_clipping_and_the_scaler_act_in_that_run(run):
    _, rows, _ = run
    assert [row["train/vf_clip_active"] for row in rows] == [1.0] * UPDATES
    assert [row["train/vf_clip_effective"] for row in rows] == [0.2] * UPDATES
    assert [row["vgs/step_count"] for row in rows] == [8.0 * n for n in range(1, UPDATES + 1)]
    warming = [row["vgs/warmup_active"] for row in rows]
    assert warming == [0.0] * UPDATES  # three steps, and the first update takes eight


def test_a_rollout_after_that_run_recomputes_every_ratio_as_one(run, monkeypatch):
    ppo, _, _ = run
    seen = []
    real = losses.batch_sums

    def watch(*arguments, **named):
        seen.append(real(*arguments, **named))
        return seen[-1]

    from stormsail.algorithms.update import epochs

    monkeypatch.setattr(epochs, "batch_sums", watch)
    ppo.update()
    first = list(itertools.islice(seen, 2))  # both halves of the first minibatch
    assert all(float(one.log_ratio_max.detach()) < 1e-5 for one in first)
    assert torch.stack([one.log_ratio_max.detach() for one in seen[2:]]).max() > 1e-4


# --- population-based training: a new learning rate reaches the optimizer

OLD, NEW = 1e-3, 4e-3
HEADS = {"critic__learning_rate_factor": 3.0, "ppo__total_steps": 320}


def rates(ppo):
    """The learning rate of every parameter group."""
    return [float(group["lr"]) for group in ppo.optimizer.param_groups]


def exploited(strategy):
    """A source after three updates, and a member that took it over with a new learning rate."""
    config = small("cartpole-lstm", **HEADS)
    source, own = trained(config, 3), trained(config.replace(seed=6), 3)
    task = make_task(config, batch=config.ppo.n_envs)
    change = exploit(strategy, ppo__learning_rate=NEW)
    member = exploited_learner(
        config.replace(seed=6), task, binding(config), *states(source, own), change
    )
    return source, member


def check_rate_stays(member):
    """Ten updates of 32 steps: the line from the new rate to 0, in both groups, for three more."""
    assert rates(member) == pytest.approx([NEW * 0.7, 3.0 * NEW * 0.7], rel=1e-12)
    for done in (3, 4, 5):
        rate = NEW * (1.0 - done / 10.0)
        assert member.schedule().learning_rate == pytest.approx(rate, rel=1e-12)
        member.update()
        assert rates(member) == pytest.approx([rate, 3.0 * rate], rel=1e-12)


def test_pbt_lr_applied_with_reset_strategy():
    source, member = exploited("reset")
    assert source.optimizer.state_dict()["state"]
    assert member.optimizer.state_dict()["state"] == {}
    for name, weights in source.agent.state_dict().items():
        assert torch.equal(member.agent.state_dict()[name], weights), name
    check_rate_stays(member)


def test_pbt_lr_applied_with_copy_strategy():
    source, member = exploited("copy")
    old, new = (ppo.optimizer.state_dict()["state"] for ppo in (source, member))
    assert old.keys() == new.keys()
    for number, entry in old.items():
        for name, value in entry.items():
            assert torch.equal(new[number][name], value), (number, name)
    check_rate_stays(member)


def test_pbt_lr_fallback_when_hyperparams_missing(tmp_path, caplog):
    search = {"ppo.clip_range": {"min": 0.05, "max": 0.3}}
    config = plan(search=search, population_size=2, changes={"ppo__total_steps": 4 * 32})
    train_population(config, out=tmp_path / "pop")
    warned = [record for record in caplog.records if "NOT found" in record.message]
    assert [record.levelname for record in warned] == ["WARNING"]
    member = int(warned[0].message.split()[1].rstrip(":"))
    assert warned[0].message == f"Member {member}: learning_rate NOT found in hyperparams"
    folder = tmp_path / "pop" / "members" / f"{member:02d}"
    assert read_config(folder).ppo.learning_rate == config.ppo.learning_rate
    assert len(read_lineage(folder).copies) == 1
