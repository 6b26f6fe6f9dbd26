"""Everything at once, in a real run: it trains, resumes bit for bit, and reports all it should."""

import itertools
import json
import math
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from stormsail.algorithms.population.config import load_training
from stormsail.algorithms.run.folder import open_run
from stormsail.algorithms.run.records import EVALUATION
from stormsail.algorithms.run.tasks import binding
from stormsail.algorithms.trainer import Trainer
from stormsail.monitors.alarms import ALARM_NAMES
from stormsail.optim import AdaptiveUPGD
from training_lab import image, run_all, run_for

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "full": {
        "twin", "quantile", "distributional", "memory", "lstm", "market", "vgs", "risk", "pull",
        "adversary",
    },
    "full-categorical": {
        "twin", "categorical", "distributional", "memory", "lstm", "market", "vgs", "risk", "pull",
        "adversary",
    },
    "full-limit": {
        "twin", "quantile", "distributional", "memory", "lstm", "market", "vgs", "risk", "pull",
        "shortfall", "actions",
    },
}  # fmt: skip
UPDATES = 10
"""A quarter of what the files train for; `test_every_part_acts` runs them to their end."""

NAMED = """
train/policy_loss train/value_loss train/entropy_loss train/value_target_scale train/ret_{mean,std}
train/advantages_norm_{max_abs,mean,std} train/grad_norm_{pre,post}_clip
train/lstm_grad_norm/trunk train/critic{1,2}_grad_norm train/critics_grad_ratio
lstm/h_{mean,std,norm}_layer0 vgs/normalized_variance debug/vecnormalize_{mean,std}_drift
debug/cvar_gradient_norm train/advantages_{mean_raw,std_raw,std_clamped}
train/log_ratio_{mean,std,max_abs,extreme_fraction}
train/approx_kl train/approx_kl_{raw,median,p90,max,ema} train/clip_fraction train/ratio_{mean,std}
train/explained_variance train/ev/{global,mean_grouped,median_grouped,corr,bias,n_samples}
train/ent_coef train/ent_coef_{nominal,eff,min,initial,final}
train/policy_entropy train/policy_entropy_{raw,slope} train/entropy_plateau
train/entropy_decay_start_update
train/cvar_{empirical,empirical_ema,raw,unit,limit_unit,gap,gap_unit,violation,violation_ema}
train/cvar_{lambda,penalty_active,weight_effective,term,loss,constraint}
debug/cvar_dual_update_source train/vf_clip_{active,effective,warmup_active,ev_gate_active}
train/value_quantile_{p50,iqr,iqr_norm} train/twin_critics/{critic_1_loss,critic_2_loss,loss_diff}
train/policy_loss_{ppo,bc,bc_weighted,kl_penalty} train/policy_bc_coef train/policy_bc_vs_ppo_ratio
train/kl_{target,beta,error,integral,early_stop} train/optimizer_lr train/optimizer_lr_{min,max}
train/{expected,actual}_batch_size train/microbatch_size train/grad_accum_steps
vgs/stochastic_var_{p10,p50,p90,mean}
vgs/{grad_norm_ema,grad_max_ema,scaling_factor,step_count,warmup_active}
rollout/win_rate rollout/win_rate_{wilson,cp}_{low,high} rollout/steps_to_win_{mean,p50,p90}
rollout/policy_entropy rollout/raw_reward_mean_in_fraction lstm/h_norm_{pre,post}_reset
train/clip_active_frac/{norm,vf,limit,quantile,ratio} rollout/reward_costs_fraction_{mean,p95,max}
rollout/reward_costs_nonfinite_count train/clip_dominant train/twin_critics/value_gap
train/return_stats/decode_encode_mismatch vgs/{noise_fraction,effect_on_update}
"""
"""Names that the audits and the earlier bot gave, with the shell's braces."""

ATOMS = "train/v_{min,max} train/value_target_{below,above}_frac"


def expanded(text):
    """Yield every name; each brace stands for one of its words."""
    for word in text.split():
        parts = re.split(r"\{([^}]*)\}", word)
        choices = [part.split(",") if k % 2 else [part] for k, part in enumerate(parts)]
        yield from map("".join, itertools.product(*choices))


def documented(holds):
    """Return the metrics that the page promises where these words hold."""
    result = set()
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        match = re.match(r"\| `((?:train|rollout|lstm|vgs|debug|config|sa_ppo)/[^`]+)` \|", line)
        if match and line.count(" | ") == 4:
            when = set(line.removesuffix(" |").rsplit(" | ", 1)[1].split())
            result |= {match[1]} if when - {"always"} <= holds else set()
    return result


def generic(name):
    name = re.sub(r"layer\d+$", "layer{l}", name)
    return re.sub(r"lstm_grad_norm/(critic_)?trunk", "lstm_grad_norm/{trunk}", name)


@pytest.fixture(scope="module", params=CONFIGS)
def run(request, tmp_path_factory):
    config = load_training(
        ROOT / "configs" / f"{request.param}.toml", [f"ppo.total_steps={512 * UPDATES}"]
    )
    out = tmp_path_factory.mktemp(request.param) / "whole"
    done = run_all(config, out)
    return request.param, config, out, done


def table(out):
    return pq.read_table(out / "metrics.parquet").to_pydict()


@pytest.mark.spec("S2-log")
def test_fixes_integration(run):
    """Every named metric is there, every one on the page is, and none besides."""
    name, _, out, done = run
    assert (done.status, done.updates) == ("finished", UPDATES)
    result = table(out)
    named = set(expanded(NAMED + (ATOMS if name == "full-categorical" else "")))
    assert len(named) >= 135
    assert named - set(result) == set()
    assert set(ALARM_NAMES) <= set(result)
    learned = {generic(metric) for metric in set(result) - {*EVALUATION, *ALARM_NAMES}}
    assert learned == documented(CONFIGS[name])
    assert result["debug/nonfinite_metrics"] == [0.0] * UPDATES


def test_every_part_really_takes_part(run):
    name, _, out, done = run
    result = table(out)
    assert result["train/cvar_ready"][-1] == 1.0
    assert max(result["train/cvar_lambda"]) > 0.0
    acts = "train/cvar_risk_share" if name == "full-limit" else "train/cvar_weight_effective"
    assert max(result[acts]) > 0.0
    assert max(result["debug/cvar_gradient_norm"]) > 0.0
    assert result["debug/cvar_dual_update_source"][-1] == 1.0
    assert result["vgs/warmup_active"][-1] == 0.0
    assert result["train/policy_loss_bc_weighted"][-1] != 0.0
    assert max(result["train/policy_loss_kl_penalty"]) > 0.0
    assert result["train/entropy_decay_start_update"][-1] >= 3.0
    assert result["train/vf_clip_active"] == [1.0] * UPDATES
    assert result["train/grad_accum_steps"] == [2.0] * UPDATES
    assert len(set(result["train/ret_std"])) == UPDATES
    assert max(result["train/return_stats/decode_encode_mismatch"]) == 0.0
    assert done.best_score is not None


def test_the_optimizer_of_the_run_is_adaptive_upgd(run, tmp_path):
    """That of the learner itself, as it goes on from the last checkpoint."""
    _, config, out, done = run
    shutil.copytree(out, tmp_path / "copy")
    bound = binding(config)
    with open_run(tmp_path / "copy", config, bound) as folder:
        resumed = Trainer(folder, bound)
    assert type(resumed.ppo.optimizer) is AdaptiveUPGD
    steps = {int(state["step"]) for state in resumed.ppo.optimizer.state.values()}
    result = table(out)
    taken, stopped = result["train/optimizer_steps"], result["train/kl_early_stop"]
    # four epochs of two minibatches, where none is cut short
    assert {steps for steps, cut in zip(taken, stopped, strict=True) if cut == 0.0} == {8.0}
    assert steps == {sum(taken)}
    assert resumed.ppo.update_count == done.updates


def test_values_are_clipped(run):
    """An update counts 512 rows of two critics in four epochs, at most 4,096 losses.

    A share of .01 is 41 of them. The first of its eight minibatches comes before any step, so that
    nothing has moved and nothing of it can be clipped: at most .875.
    """
    _, _, out, _ = run
    clipped = table(out)["train/clip_active_frac/vf"]
    assert min(clipped[:3]) > 0.01
    assert sum(clipped) / UPDATES > 0.01
    assert max(clipped) < 0.875


def test_noise_shrinks_every_step_after_the_warm_up_and_none_before(run):
    """The mean factor is near 1 / (1 + alpha v) for a variance of v times the squared signal.

    `vgs/noise_fraction` is v / (1 + v), so v is at least .5 where it is a third or more. A policy
    that learns from all actions has less noise at first, and moves so far that an update ends
    early, so that the warm-up takes one more.
    """
    name, config, out, _ = run
    waits, least = (2, 0.15) if name == "full-limit" else (1, 1 / 3)
    result = table(out)
    assert result["vgs/warmup_active"] == [1.0] * waits + [0.0] * (UPDATES - waits)
    assert result["vgs/scaling_factor"][:waits] == [1.0] * waits
    assert result["vgs/effect_on_update"][:waits] == [0.0] * waits
    assert min(result["vgs/noise_fraction"]) > least
    assert min(result["vgs/noise_fraction"][waits:]) > 1 / 3
    later = result["vgs/scaling_factor"][waits:]
    assert max(later) < 1.0 / (1.0 + 0.5 * config.vgs.alpha)
    assert min(later) > config.vgs.min_scaling_factor
    assert min(result["vgs/effect_on_update"][waits:]) > 0.02


def test_the_two_critics_are_two(run):
    """Equal weights, or one critic read twice, would give a difference of 0 to the bit."""
    _, _, out, _ = run
    result = table(out)
    first, second = (result[f"train/twin_critics/critic_{k}_loss"] for k in (1, 2))
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    assert result["train/twin_critics/loss_diff"] == pytest.approx(gaps, abs=1e-6)
    # the sign changes on the way, so a single gap may be small; none is 0, and most are not
    assert all(gap != 0.0 for gap in gaps)
    assert sorted(map(abs, gaps))[len(gaps) // 10] > 1e-5  # a hundred roundings of a float32 near 1


def test_the_multiplier_of_a_real_run_is_made_of_the_gaps_it_reports(run):
    name, config, out, _ = run
    result, risk = table(out), config.risk
    if name == "full-limit":
        shares = result["train/cvar_risk_share"]
        assert result["train/cvar_lambda"] == pytest.approx([x / (1.0 - x) for x in shares])
        assert 0.0 < max(shares) < 1.0
        return
    integral, before = 0.0, None
    for gap, ready, lam in zip(
        result["train/cvar_gap_unit"], result["train/cvar_ready"], result["train/cvar_lambda"],
        strict=True,
    ):  # fmt: skip
        if ready == 0.0:
            assert lam == 0.0
            continue
        integral = min(max(integral + gap, 0.0), risk.cvar_lambda_max / risk.cvar_ki)
        growth = 0.0 if before is None else max(gap - before, 0.0)
        wanted = risk.cvar_kp * gap + risk.cvar_ki * integral + risk.cvar_kd * growth
        assert lam == pytest.approx(min(max(wanted, 0.0), risk.cvar_lambda_max), abs=1e-12)
        before = gap


def test_an_interrupted_run_of_everything_ends_with_the_same_bytes(run, tmp_path):
    _, config, out, done = run
    for updates in (1, 5):
        run_for(config, tmp_path / "cut", updates)
    ended = run_all(config, tmp_path / "cut")
    assert image(tmp_path / "cut") == image(out)
    for name, tensor in done.agent.state_dict().items():
        assert torch.equal(tensor, ended.agent.state_dict()[name]), name


def test_events_are_those_of_a_run_without_faults(run):
    _, _, out, _ = run
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    kinds = {event["kind"] for event in events}
    assert kinds <= {"alarm", "trial"}
    assert not [event for event in events if event.get("severity") == "error"]
    assert not math.isnan(events[-1].get("score", 0.0) or 0.0)
