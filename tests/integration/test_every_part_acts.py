"""The shipped files with every part on: each acts by a stated amount, and the policy moves."""

import math
from pathlib import Path

import pytest

import acting
from stormsail.algorithms.population.config import load_training
from training_lab import run_all

CONFIGS = Path(__file__).parents[2] / "configs"
STEPS = {
    "full": 20_480, "full-categorical": 20_480, "full-limit": 20_480, "full-cartpole": 40_960,
}  # fmt: skip
"""Of a run; the pole is learned for longer (`stormsail bench learn --tasks full-cartpole`), and all
parts have acted by then."""

NATS = {"full": math.log(5) - 0.5, "full-categorical": math.log(5) - 0.5,
        "full-limit": math.log(5) - 0.5, "full-cartpole": math.log(2) - 0.1}  # fmt: skip
"""Largest entropy of the policy at the end; that of a policy which has learned nothing, less a
margin."""

# What a part that is on and does nothing looks like: a column and its value in each update.
STILL = (
    ("ratio clip", "train/clip_fraction", 0.0),
    ("KL penalty", "train/policy_loss_kl_penalty", 2e-8),
    ("early stop", "train/kl_early_stop", 0.0),
    ("early stop", "train/minibatches", 8.0),
    ("gradient clip", "train/grad_norm_pre_clip_max", 0.09),
    ("VGS", "vgs/scaling_factor", 0.505),
    ("VGS", "vgs/scaling_factor", 0.7),
    ("VGS", "vgs/scaling_factor", 1.0),
    ("value clip", "train/clip_active_frac/vf", 0.0),
    ("entropy plateau", "train/entropy_decay_start_update", -1.0),
    ("entropy plateau", "train/ent_coef_nominal", 0.01),
    ("AWR", "train/policy_loss_bc_weighted", 0.0),
    ("CVaR constraint", "train/cvar_lambda", 0.0),
    ("CVaR weight", "train/cvar_weight_effective", 0.0),
    ("CVaR share", "train/cvar_risk_share", 0.0),
    ("CVaR gradient", "debug/cvar_gradient_norm", 0.0),
    ("micro-batches", "train/grad_accum_steps", 1.0),
    ("PopArt", "train/ret_std", 0.01),
    ("PopArt", "train/return_stats/decode_encode_mismatch", 1e-9),
    ("adversary", "sa_ppo/robust_kl_penalty", 0.0),
    ("adversary", "sa_ppo/avg_perturbation_norm", 0.0),
    ("policy", "train/policy_entropy", 1.609),
)


@pytest.fixture(scope="module", params=STEPS)
def run(request, tmp_path_factory):
    config = load_training(CONFIGS / f"{request.param}.toml")
    if request.param == "full-cartpole":
        config = config.replace(**{"ppo.total_steps": STEPS[request.param]})
    out = tmp_path_factory.mktemp(request.param) / "run"
    done = run_all(config, out)
    assert (done.status, done.steps) == ("finished", STEPS[request.param])
    return request.param, config, acting.columns(out)


def test_the_policy_ends_far_from_the_one_it_began_with(run):
    name, _, table = run
    assert table["train/policy_entropy"][-1] < NATS[name]


def test_every_part_acts_by_what_is_stated(run):
    _, config, table = run
    assert acting.idle(table, config) == []


def test_a_part_that_stands_still_is_named(run):
    _, config, table = run
    assert {part for part, *_ in STILL} == {name.partition(":")[0] for name in acting.EFFECTS}
    own = {name.partition(":")[0] for name in acting.parts(config)}
    for part, name, value in STILL:
        if part not in own:
            continue
        problems = acting.idle({**table, name: [value] * len(table[name])}, config)
        assert [problem.partition(":")[0] for problem in problems] == [part], name


def test_the_two_markets_differ_in_their_critics_and_adversaries_alone():
    full, twin = (load_training(CONFIGS / f"{name}.toml") for name in ("full", "full-categorical"))
    same = twin.replace(**{f"critic.{n}": v for n, v in full.critic.model_dump().items()})
    same = same.replace(adversary=full.adversary)
    assert same == full
    assert (full.adversary.mode, twin.adversary.mode) == ("kl_reg", "mixed_batch")
    assert (full.critic.kind, twin.critic.kind) == ("quantile", "categorical")
