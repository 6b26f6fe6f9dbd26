"""What an update reports: every name, and the numbers behind them, from the real learner."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.config.derive import derive
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.run.records import EVALUATION
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.algorithms.telemetry import metrics as telemetry
from stormsail.algorithms.telemetry import rollout as telemetry_rollout
from stormsail.algorithms.telemetry import values
from stormsail.algorithms.telemetry.learning import STOP_RULES, gradients
from stormsail.algorithms.telemetry.metrics import metrics
from stormsail.algorithms.update.epochs import EpochReport, Minibatches, MinibatchReport
from stormsail.core.generators import Generators
from stormsail.functional import statistics
from stormsail.functional.statistics import Moments
from stormsail.modules.agent import Agent
from stormsail.monitors.alarms import Alarms

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"
SMALL = {
    "ppo.n_envs": 4,
    "ppo.n_steps": 16,
    "ppo.batch_size": 2,
    "ppo.n_epochs": 2,
    "network.lstm_hidden_size": 8,
    "network.encoder_sizes": (8,),
    "network.head_sizes": (8,),
    "critic.num_quantiles": 8,
    "critic.num_atoms": 11,
    "critic.levels": "uniform",
    "task.name": "CartPole-v1",
    "compile_update": False,
    "observation.warmup_steps": 0,
}
ONE_STEP = {"ppo.batch_size": 4, "ppo.n_epochs": 1, "ppo.max_grad_norm": 0.0}
MARKET = {
    "task.name": "market",
    "task.data.world_bars": 1200,
    "task.data.world_symbols": 3,
    "task.market.episode_bars": 6,
    "task.market.features": [{"name": "log_return"}],
}
SCALAR = {"critic.kind": "scalar", "target.kind": "lambda_return"}
TAIL = {
    "risk.cvar_use_constraint": True, "risk.cvar_limit": -1e-4, "risk.cvar_weight": 0.1,
    "risk.cvar_alpha": 0.5, "risk.cvar_min_samples": 4, "risk.cvar_min_tail_samples": 1,
}  # fmt: skip
LIMIT = {name: value for name, value in TAIL.items() if name != "risk.cvar_weight"}


def learner(**changes):
    config = derive(TrainConfig().replace(**{**SMALL, **changes}))
    generators = Generators(config.seed)
    task = make_task(config, batch=config.ppo.n_envs)
    agent = Agent(agent_spec(config, task), generators.stream("weights"))
    return Ppo(task, agent, config, generators)


def heads(ppo):
    return list(ppo.agent.network.critic.heads)


def plant(parameters, norm):
    """Give parameters gradients of one norm together."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    count = sum(parameter.numel() for parameter in parameters)
    for parameter in parameters:
        parameter.grad *= norm / math.sqrt(count)


def stepped(ppo, update, *reports):
    """Return the update as if its gradients had been these."""
    like = update.learned.minibatches[0]
    taken = [MinibatchReport(like.sums, report, 1, skipped=False) for report in reports]
    return dataclasses.replace(
        update, learned=EpochReport(Minibatches.of(taken), 1, "", [0.0] * len(taken))
    )


def with_head_norms(first, second):
    """Return the metrics of an update of a real learner with planted gradients of its heads."""
    ppo = learner()
    update = ppo.update()
    ppo.optimizer.zero_grad(set_to_none=True)
    for head, norm in zip(heads(ppo), (first, second), strict=True):
        plant(head.parameters(), norm)
    return metrics(ppo, stepped(ppo, update, ppo.pipeline.step()))


# -- names ----------------------------------------------------------------------------------------


def documented():
    """Return name, text and conditions of every metric in the page."""
    result = {}
    for line in DOCS.read_text().splitlines():
        match = re.match(
            r"\| `((?:train|rollout|lstm|vgs|debug|config|sa_ppo|validation)/[^`]+)` \|", line
        )
        if match and line.count(" | ") == 4:
            when = line.removesuffix(" |").rsplit(" | ", 1)[1]
            assert match[1] not in result
            result[match[1]] = (line, set(when.split()))
    return result


def generic(name):
    name = re.sub(r"layer\d+$", "layer{l}", name)
    name = re.sub(r"^rollout/info/.+", "rollout/info/{key}", name)
    return re.sub(r"lstm_grad_norm/(critic_)?trunk", "lstm_grad_norm/{trunk}", name)


CONFIGS = {
    "default": ({}, {"twin", "quantile", "distributional", "memory", "lstm"}),
    "market": (
        {**MARKET, "vgs.enabled": True, **TAIL, "risk.cvar_log_gradient": True},
        {"twin", "quantile", "distributional", "memory", "lstm", "market", "vgs", "risk", "pull"},
    ),
    "categorical market": (
        {**MARKET, "critic.kind": "categorical", "network.memory": "none", **TAIL},
        {"twin", "categorical", "distributional", "market", "risk"},
    ),
    "limit on a market": (
        {**MARKET, **LIMIT, "risk.cvar_log_gradient": True},
        {
            *("twin", "quantile", "distributional", "memory", "lstm", "market"),
            *("risk", "pull", "shortfall", "actions"),
        },
    ),
    "all actions without a limit": (
        {**MARKET, "ppo.policy_gradient": "all_actions"},
        {
            *("twin", "quantile", "distributional", "memory", "lstm", "market"),
            *("risk", "shortfall", "actions"),
        },
    ),
    "limit on a pole": (
        {**LIMIT, "network.memory": "none"},
        {"twin", "quantile", "distributional", "risk", "shortfall"},
    ),
    "regularised": (
        {"adversary.mode": "kl_reg", "adversary.warmup_updates": 1},
        {"twin", "quantile", "distributional", "memory", "lstm", "adversary"},
    ),
    "attacked market": (
        {**MARKET, "adversary.mode": "mixed_batch", "adversary.warmup_updates": 0},
        {"twin", "quantile", "distributional", "memory", "lstm", "market", "adversary"},
    ),
    "categorical": (
        {"critic.kind": "categorical", "network.enable_critic_lstm": True, "network.num_layers": 2},
        {"twin", "categorical", "distributional", "memory", "lstm"},
    ),
    "scalar": (
        {**SCALAR, "vgs.enabled": True, "network.memory": "gru"},
        {"twin", "memory", "vgs"},
    ),
    "one critic": (
        {"critic.use_twin_critics": False, "vgs.enabled": True, "network.memory": "none"},
        {"quantile", "distributional", "vgs"},
    ),
    "continuous": (
        {
            "task.name": "Pendulum-v1",
            "value_clip.clip_range_vf": 0.2,
            "kl.target_kl": None,
            "policy.distribution": "beta",
            "observation.normalise": False,
            "ppo.microbatch_size": 1,
            "network.memory": "none",
            **SCALAR,
        },
        {"twin"},
    ),
    "gymnasium": (
        {"task.name": "gym:FrozenLake-v1", "network.memory": "none"},
        {"twin", "quantile", "distributional", "info"},
    ),
}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_the_page_lists_what_is_reported_and_nothing_else(name):
    changes, holds = CONFIGS[name]
    ppo = learner(**changes)
    seen = [metrics(ppo, ppo.update()) for _ in range(2)]
    wanted = {metric for metric, (_, when) in documented().items() if when - {"always"} <= holds}
    assert {generic(metric) for metric in seen[0]} == wanted
    assert list(seen[0]) == list(seen[1]) == sorted(seen[0])
    assert all(type(value) is float for value in seen[1].values())
    assert [row["debug/nonfinite_metrics"] for row in seen] == [0.0, 0.0]


def test_every_row_of_the_page_belongs_to_some_configuration_tried_here():
    every = set().union(*(holds for _, holds in CONFIGS.values()))
    later = {name for name, (_, when) in documented().items() if not when - {"always"} <= every}
    assert later == set(EVALUATION)


def test_the_page_says_which_metrics_may_be_unknown():
    said = {name for name, (line, _) in documented().items() if "NaN" in line}
    assert said - set(EVALUATION) == telemetry.MAY_BE_UNKNOWN


def test_measuring_changes_nothing():
    one, other = learner(), learner()
    for _ in range(2):
        other.update()
        metrics(one, one.update())
    theirs = {**other.agent.state_dict(), **other.generators.state()}
    mine = {**one.agent.state_dict(), **one.generators.state()}
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_the_same_seed_gives_the_same_numbers():
    rows = []
    for _ in range(2):
        ppo = learner(**MARKET)
        rows.append([list(metrics(ppo, ppo.update()).values()) for _ in range(2)])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_what_is_not_finite_is_counted_and_becomes_nan():
    row = telemetry.finite(
        {
            "train/loss": math.inf,
            "train/value_loss": math.nan,
            "rollout/win_rate": math.nan,
            "rollout/episode_return_mean": -math.inf,
            "train/update": 3.0,
        }
    )
    assert row["debug/nonfinite_metrics"] == 3.0
    assert math.isnan(row["train/loss"])
    assert math.isnan(row["rollout/episode_return_mean"])
    assert row["train/update"] == 3.0
    assert list(row) == sorted(row)


# -- the adversary --------------------------------------------------------------------------------


def test_the_adversary_reports_what_it_did():
    ppo = learner(**{
        "adversary.mode": "mixed_batch", "adversary.warmup_updates": 1,
        "adversary.epsilon": 0.2, "adversary.robust_kl_coef": 0.5, "kl.target_kl": None,
    })  # fmt: skip
    first, second = (metrics(ppo, ppo.update()) for _ in range(2))
    assert (first["sa_ppo/current_epsilon"], second["sa_ppo/current_epsilon"]) == (0.0, 0.2)
    assert (first["sa_ppo/update_count"], second["sa_ppo/update_count"]) == (1.0, 2.0)
    assert (first["sa_ppo/attack_count"], second["sa_ppo/attack_count"]) == (0.0, 4.0)
    assert first["sa_ppo/adversarial_samples"] == first["sa_ppo/robust_kl_penalty"] == 0.0
    assert math.isnan(first["sa_ppo/policy_loss"])
    total = second["sa_ppo/adversarial_samples"] + second["sa_ppo/clean_samples"]
    assert total == 2.0 * second["rollout/samples"]
    assert second["sa_ppo/adversarial_ratio"] == second["sa_ppo/adversarial_samples"] / total
    assert 0.4 < second["sa_ppo/adversarial_ratio"] < 0.6
    assert second["sa_ppo/avg_perturbation_norm"] == pytest.approx(0.19, abs=0.01)


def test_the_reported_penalty_of_the_adversary_is_what_the_loss_holds():
    ppo = learner(**{
        "adversary.mode": "kl_reg", "adversary.warmup_updates": 0, "ppo.n_epochs": 1,
        "ppo.batch_size": 4, "adversary.robust_kl_coef": 2.0, "kl.target_kl": None,
    })  # fmt: skip
    row = metrics(ppo, ppo.update())
    clean = row["train/policy_loss"] + row["train/vf_coef"] * row["train/value_loss"]
    clean += row["train/ent_coef"] * row["train/entropy_loss"]
    penalty = row["sa_ppo/robust_kl_penalty"]
    assert row["train/loss"] - clean == pytest.approx(penalty, rel=0.02, abs=1e-7)
    assert row["sa_ppo/adversarial_ratio"] == 1.0


def test_an_adversary_of_rollouts_reports_what_it_did():
    ppo = learner(**{
        "adversary.mode": "rollout", "adversary.warmup_updates": 1, "adversary.epsilon": 0.2,
        "adversary.attack_method": "fgsm", "kl.target_kl": None,
    })  # fmt: skip
    first = metrics(ppo, ppo.update())
    update = ppo.update()
    second = metrics(ppo, update)
    assert (first["sa_ppo/attack_count"], first["sa_ppo/adversarial_samples"]) == (0.0, 0.0)
    assert math.isnan(first["sa_ppo/avg_perturbation_norm"])
    weight = update.rollout.weight
    half = weight[:, weight.shape[1] // 2 :]
    assert second["sa_ppo/attack_count"] == len(weight)
    assert second["sa_ppo/adversarial_samples"] == float(half.sum())
    total = second["sa_ppo/adversarial_samples"] + second["sa_ppo/clean_samples"]
    assert total == second["rollout/samples"]
    assert second["sa_ppo/adversarial_ratio"] == second["sa_ppo/adversarial_samples"] / total
    assert second["sa_ppo/avg_perturbation_norm"] == pytest.approx(0.2, rel=1e-5)
    advantage = update.advantage[:, weight.shape[1] // 2 :].double()
    expected = -float((advantage * half).sum() / half.sum())
    assert second["sa_ppo/policy_loss"] == pytest.approx(expected, rel=1e-6)
    assert second["sa_ppo/entropy"] > 0.0
    assert math.isnan(second["sa_ppo/value_loss"])


# -- gradients ------------------------------------------------------------------------------------


@pytest.mark.spec("T-T1", "S0-7", "X17")
def test_twin_critics_gradient_norms_logged():
    row = with_head_norms(3.0, 4.0)
    assert row["train/critic1_grad_norm"] == pytest.approx(3.0, rel=1e-6)
    assert row["train/critic2_grad_norm"] == pytest.approx(4.0, rel=1e-6)
    assert row["train/critics_grad_ratio"] == pytest.approx(0.75, rel=1e-6)
    assert row["train/grad_norm_raw"] == pytest.approx(5.0, rel=1e-6)
    assert row["train/grad_norm_pre_clip"] == pytest.approx(5.0, rel=1e-6)
    assert row["train/grad_norm_post_clip"] == pytest.approx(0.5, rel=1e-5)
    assert row["train/lstm_grad_norm/trunk"] == 0.0


@pytest.mark.spec("T-T1")
def test_norms_of_a_real_update_are_roots_of_sums_of_squares():
    ppo = learner(**ONE_STEP)
    row = metrics(ppo, ppo.update())  # one step, unclipped: its gradients are still there

    def norm(parameters):
        return math.sqrt(sum(float(one.grad.double().square().sum()) for one in parameters))

    for number, head in enumerate(heads(ppo), start=1):
        expected = norm(head.parameters())
        assert row[f"train/critic{number}_grad_norm"] == pytest.approx(expected, rel=1e-5)
    memory = ppo.agent.network.trunk.memory
    assert row["train/lstm_grad_norm/trunk"] == pytest.approx(norm(memory.parameters()), rel=1e-5)
    assert row["train/grad_norm_raw"] == pytest.approx(norm(ppo.agent.parameters()), rel=1e-5)
    assert row["train/critic1_grad_norm"] != row["train/critic2_grad_norm"]


@pytest.mark.spec("T-T4", "S2-7")
def test_twin_critics_gradient_imbalance_warning():
    name = "warn/twin_critics_gradient_imbalance"
    loud = Alarms().check(with_head_norms(1.01, 0.01))
    assert [alarm.name for alarm in loud if "twin" in alarm.name] == [name]
    assert loud[[alarm.name for alarm in loud].index(name)].value == pytest.approx(101.0, rel=1e-5)
    assert name not in [alarm.name for alarm in Alarms().check(with_head_norms(0.99, 0.01))]
    assert name in [alarm.name for alarm in Alarms().check(with_head_norms(0.009, 1.0))]
    assert name not in [alarm.name for alarm in Alarms().check(with_head_norms(0.011, 1.0))]
    stuck, alarms = with_head_norms(1.01, 0.01), Alarms()
    begun = [[alarm.name for alarm in alarms.check(stuck)] for _ in range(7)]
    persistent = "warn/twin_critics_persistent_imbalance"
    assert [persistent in names for names in begun] == [False] * 5 + [True, False]


@pytest.mark.spec("T-T4", "S2-7")
def test_twin_critics_vanishing_gradients_warning():
    row = with_head_norms(1.0, 0.0)
    begun = [alarm.name for alarm in Alarms().check(row)]
    assert "warn/critic2_vanishing_gradients" in begun
    assert "warn/critic1_vanishing_gradients" not in begun
    assert "warn/twin_critics_gradient_imbalance" not in begun
    assert math.isnan(row["train/critics_grad_ratio"])
    begun = [alarm.name for alarm in Alarms().check(with_head_norms(0.9e-8, 1.0))]
    assert "warn/critic1_vanishing_gradients" in begun
    begun = [alarm.name for alarm in Alarms().check(with_head_norms(1.1e-8, 1.0))]
    assert "warn/critic1_vanishing_gradients" not in begun


@pytest.mark.spec("S4-R1", "T-M4")
def test_policy_gradient_explosion_detection():
    calm = learner()
    row = metrics(calm, calm.update())
    assert row["train/grad_norm_pre_clip_max"] < 10.0
    assert "alert/gradient_explosion" not in [alarm.name for alarm in Alarms().check(row)]
    wild = learner(
        **{"entropy.ent_coef": 1e6, "ppo.learning_rate": 1e-9, "ppo.optimizer_lr_min": 0.0}
    )
    with torch.no_grad():  # far from the uniform policy, whose entropy has no gradient
        wild.agent.network.actor_last.weight.mul_(100.0)
    row = metrics(wild, wild.update())
    loud = {alarm.name: alarm for alarm in Alarms().check(row)}
    assert loud["alert/gradient_explosion"].value == row["train/grad_norm_pre_clip_max"]
    assert row["train/grad_norm_pre_clip_max"] > 50.0
    assert row["train/grad_norm_post_clip_max"] <= 0.5
    assert "error/post_clip_invariant" not in loud


def test_the_largest_norm_of_an_update_is_found_among_its_steps():
    ppo = learner()
    update, reports = ppo.update(), []
    for norm in (1.0, 60.0, 2.0):
        ppo.optimizer.zero_grad(set_to_none=True)
        plant(heads(ppo)[0].parameters(), norm)
        reports.append(ppo.pipeline.step())
    row = metrics(ppo, stepped(ppo, update, *reports))
    assert row["train/grad_norm_pre_clip"] == pytest.approx(21.0, rel=1e-6)
    assert row["train/grad_norm_pre_clip_max"] == pytest.approx(60.0, rel=1e-6)


def test_a_refused_step_is_counted_and_leaves_the_norms_alone():
    ppo = learner()
    update, reports = ppo.update(), []
    for norm in (2.0, math.nan):
        ppo.optimizer.zero_grad(set_to_none=True)
        plant(heads(ppo)[0].parameters(), norm)
        reports.append(ppo.pipeline.step())
    row = metrics(ppo, stepped(ppo, update, *reports))
    assert row["train/steps_refused"] == 1.0
    assert row["train/optimizer_steps"] == 1.0
    assert row["train/critic1_grad_norm"] == pytest.approx(2.0, rel=1e-6)
    assert row["train/grad_norm_pre_clip_max"] == pytest.approx(2.0, rel=1e-6)
    assert "alert/steps_refused" in [alarm.name for alarm in Alarms().check(row)]


@pytest.mark.spec("T-L3", "S3-7")
def test_each_layer_of_a_memory_has_the_root_of_its_own_squares():
    ppo = learner(**{"network.num_layers": 2, "network.enable_critic_lstm": True})
    update = ppo.update()
    ppo.optimizer.zero_grad(set_to_none=True)
    memory = ppo.agent.network.trunk.memory
    parts = (memory.input_weights, memory.hidden_weights, memory.input_biases, memory.hidden_biases)
    for layer, norm in enumerate((3.0, 4.0)):
        plant([part[layer] for part in parts], norm)
    row = metrics(ppo, stepped(ppo, update, ppo.pipeline.step()))
    assert row["train/lstm_grad_norm/trunk_layer0"] == pytest.approx(3.0, rel=1e-6)
    assert row["train/lstm_grad_norm/trunk_layer1"] == pytest.approx(4.0, rel=1e-6)
    assert row["train/lstm_grad_norm/trunk"] == pytest.approx(5.0, rel=1e-6)
    assert row["train/lstm_grad_norm/critic_trunk"] == 0.0
    assert row["train/lstm_grad_norm/critic_trunk_layer1"] == 0.0


def test_scaled_norms_are_those_of_the_last_step_times_its_factors():
    ppo = learner(**{"vgs.enabled": True, "vgs.warmup_steps": 1})
    update = ppo.update()
    row = metrics(ppo, update)
    factors = ppo.pipeline.scaler.factors()
    last = ppo.pipeline.norms_by_name(update.learned.minibatches[-1].gradient)
    expected = math.sqrt(
        sum(
            float(factors[name] * last[name]) ** 2
            for name in last
            if name.startswith("network.critic.heads.1.")
        )
    )
    assert row["train/critic2_grad_norm_scaled"] == pytest.approx(expected, rel=1e-5)
    assert row["vgs/step_count"] == 4.0
    assert row["vgs/normalized_variance"] == float(ppo.pipeline.scaler.get_normalized_variance())


# -- losses and ratios ----------------------------------------------------------------------------


def test_the_loss_is_the_sum_of_its_reported_terms():
    changes = {"bc.awr_coef": 0.3, "kl.penalty": True, "kl.target_kl": 0.5, "ppo.n_epochs": 3}
    ppo = learner(**changes)
    row = metrics(ppo, ppo.update())
    assert row["train/loss"] == pytest.approx(
        row["train/policy_loss"]
        + row["train/ent_coef"] * row["train/entropy_loss"]
        + row["train/vf_coef"] * row["train/value_loss"],
        rel=1e-6,
    )
    assert row["train/policy_loss"] == pytest.approx(
        row["train/policy_loss_ppo"]
        + row["train/policy_loss_bc_weighted"]
        + row["train/policy_loss_kl_penalty"]
    )
    assert row["train/policy_loss_bc_weighted"] == pytest.approx(0.3 * row["train/policy_loss_bc"])
    assert row["train/policy_loss_kl_penalty"] == pytest.approx(0.01 * row["train/kl_analytic"])
    assert row["train/policy_bc_vs_ppo_ratio"] == pytest.approx(
        abs(row["train/policy_loss_bc_weighted"] / row["train/policy_loss_ppo"])
    )
    halves = row["train/twin_critics/critic_1_loss"] + row["train/twin_critics/critic_2_loss"]
    assert row["train/value_loss"] == pytest.approx(halves / 2)


def test_before_the_first_step_nothing_has_moved():
    ppo = learner(**ONE_STEP)
    update = ppo.update()
    row = metrics(ppo, update)
    weight = update.rollout.weight
    assert row["train/approx_kl"] == pytest.approx(0.0, abs=1e-9)
    assert row["train/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert row["train/clip_fraction"] == 0.0
    expected = float((update.advantage * weight).sum() / weight.sum())
    assert row["train/policy_loss_ppo"] == pytest.approx(-expected, abs=1e-6)
    entropy = ppo.agent.network.head.entropy(update.rollout.parameters)
    expected = float((entropy * weight).sum() / weight.sum())
    assert row["train/policy_entropy"] == pytest.approx(expected, rel=1e-6)
    assert row["train/policy_entropy_raw"] == pytest.approx(expected, rel=1e-6)
    assert row["train/entropy_loss"] == -row["train/policy_entropy"]
    drawn = -(update.rollout.log_prob.double() * weight).sum() / weight.sum()
    assert row["rollout/policy_entropy"] == pytest.approx(float(drawn), rel=1e-6)


def test_divergence_is_summarised_over_minibatches():
    ppo = learner()
    update = ppo.update()
    seen = [0.01, 0.05, 0.1, 0.02, 0.3]
    learned = dataclasses.replace(update.learned, divergence=seen, stopped="fraction")
    ppo.kl.average = 0.125
    row = metrics(ppo, dataclasses.replace(update, learned=learned))
    assert row["train/approx_kl_median"] == pytest.approx(0.05)
    assert row["train/approx_kl_p90"] == pytest.approx(np.quantile(seen, 0.9))
    assert row["train/approx_kl_max"] == pytest.approx(0.3)
    assert row["train/approx_kl_ema"] == 0.125
    assert row["train/kl_exceed_fraction"] == pytest.approx(0.4)
    assert row["train/kl_early_stop"] == 1.0
    assert row["train/kl_stop_reason"] == 3.0
    assert STOP_RULES == ("", "absolute", "consecutive", "fraction")


def test_sums_over_minibatches_are_weighted_by_what_they_used():
    ppo = learner()
    update = ppo.update()
    first, second = update.learned.minibatches[:2]

    def number(value):
        return torch.tensor(float(value))

    sums = [
        first.sums._replace(
            weight=number(weight),
            log_ratio=number(total),
            log_ratio_square=number(square),
            clipped=number(weight / 2),
            extreme=number(1),
            log_ratio_max=number(largest),
            nan=torch.tensor(count),
            inf=torch.tensor(2 * count),
        )
        for weight, total, square, largest, count in ((3, 6, 14, 2.5, 1), (1, -2, 4, 12.0, 2))
    ]
    reports = [first._replace(sums=sums[0]), second._replace(sums=sums[1])]
    learned = dataclasses.replace(update.learned, minibatches=Minibatches.of(reports))
    row = metrics(ppo, dataclasses.replace(update, learned=learned))
    assert row["train/log_ratio_mean"] == 1.0
    assert row["train/approx_kl_raw"] == -1.0
    assert row["train/log_ratio_std"] == pytest.approx(math.sqrt(18 / 4 - 1))
    assert row["train/log_ratio_max_abs"] == 12.0
    assert row["train/log_ratio_extreme_fraction"] == 0.5
    assert row["train/clip_fraction"] == row["train/clip_active_frac/ratio"] == 0.5
    assert row["train/log_ratio_nan_count"] == 3.0
    assert row["train/log_ratio_inf_count"] == 6.0
    assert row["train/actual_batch_size"] == 2.0
    begun = [alarm.name for alarm in Alarms().check(row)]
    assert {"error/log_ratio_nonfinite", "warn/log_ratio_severe_instability"} <= set(begun)


@pytest.mark.spec("T-M2", "S4-V7")
def test_the_dominant_clip_is_named_by_its_place():
    fractions = {"norm": 0.001, "vf": 0.2, "limit": 0.0, "quantile": 0.98, "ratio": 0.15}
    row = {f"train/clip_active_frac/{name}": value for name, value in fractions.items()}

    def dominant(**changes):
        changed = {f"train/clip_active_frac/{name}": value for name, value in changes.items()}
        return telemetry.dominant_clip({**row, "train/quantile_crossing_frac": 0.0, **changed})

    # Over what is usual of each: norm 0.1, vf 0.67, limit 0, quantile (1 - 0.98) / 0.5, ratio 0.5.
    assert dominant() == 2.0
    assert dominant(ratio=0.21) == 5.0  # 0.7
    assert dominant(norm=0.0068) == 1.0  # 0.68
    assert dominant(limit=0.0068) == 3.0
    assert dominant(quantile=0.66) == 4.0  # 0.34 of the pairs in the quadratic zone: 0.68
    assert dominant(quantile=1.0, vf=0.0, ratio=0.0, norm=0.0) == 0.0
    # Other critics have no pairs, whose share is then 0.
    plain = dict.fromkeys(row, 0.0)
    assert telemetry.dominant_clip(plain) == 0.0
    assert telemetry.dominant_clip(dict.fromkeys(row, math.nan)) == 0.0
    assert telemetry.dominant_clip({**plain, "train/clip_active_frac/ratio": 0.01}) == 5.0


@pytest.mark.spec("T-M2")
def test_planted_targets_and_values_give_exact_clip_fractions():
    ppo = learner(**{**ONE_STEP, "value_clip.value_clip_limit": 1.0, "critic.num_quantiles": 4})
    update = ppo.update()
    weight = torch.zeros_like(update.rollout.weight)
    weight[0] = 1.0  # four samples count
    target = torch.zeros_like(update.target)
    target[0, 0] = 10.0  # all atoms of one of them
    target[0, 1, 0] = -11.0  # one of four atoms of another
    target[1:] = 50.0  # without weight
    assert target.shape[-1] == 4
    value = torch.zeros_like(update.estimates.value)
    value[0, :3] = torch.tensor([1.0, -1.0, 0.5])
    row = metrics(
        ppo,
        dataclasses.replace(
            update,
            target=target,
            rollout=dataclasses.replace(update.rollout, weight=weight),
            estimates=dataclasses.replace(update.estimates, value=value),
        ),
    )
    assert row["train/clip_active_frac/norm"] == (1.0 + 0.25) / 4
    assert row["train/clip_active_frac/limit"] == 0.5


def test_returns_outside_the_atoms_are_counted_on_their_side():
    ppo = learner(**{"critic.kind": "categorical", "critic.v_range_ema_alpha": 0.0})
    update = ppo.update()
    weight = torch.zeros_like(update.rollout.weight)
    weight[0] = 1.0
    scale, atoms = ppo.agent.return_scale, ppo.agent.network.critic.atoms
    span = float(atoms[-1] - atoms[0])
    places = torch.tensor([-0.1, 0.5, 1.1, 1.2]) * span + float(atoms[0])
    returns = torch.zeros_like(update.estimates.returns)
    returns[0] = scale.decode(places)
    estimates = dataclasses.replace(update.estimates, returns=returns)
    rollout = dataclasses.replace(update.rollout, weight=weight)
    row = metrics(ppo, dataclasses.replace(update, estimates=estimates, rollout=rollout))
    assert row["train/value_target_below_frac"] == 0.25
    assert row["train/value_target_above_frac"] == 0.5
    assert row["train/clip_active_frac/norm"] == 0.75
    assert row["train/v_min"] == float(atoms[0])
    assert row["train/v_max"] == float(atoms[-1])


# -- rollout --------------------------------------------------------------------------------------


def test_finished_episodes_are_those_of_a_plain_replay():
    cheap = {f"task.market.costs.{name}": 1e-5 for name in ("taker_fee", "half_spread", "impact")}
    ppo = learner(**MARKET, **cheap, **{"ppo.n_envs": 16})
    running, length = [0.0] * 16, [0] * 16
    for _ in range(3):
        update = ppo.update()
        rollout, won, lengths, returns = update.rollout, [], [], []
        for t in range(16):
            for b in range(16):
                if float(rollout.weight[t, b]) > 0.0:
                    running[b] += float(rollout.reward[t, b])
                    length[b] += 1
                if bool(rollout.ended[t, b]):
                    returns.append(running[b])
                    won += [running[b] > 0.0]
                    lengths += [length[b]] * won[-1]
                    running[b], length[b] = 0.0, 0
        row = metrics(ppo, update)
        assert 0 < sum(won) < len(won)
        assert row["rollout/episodes"] == len(returns)
        assert row["rollout/wins"] == sum(won)
        assert row["rollout/win_rate"] == pytest.approx(sum(won) / len(won))
        assert row["rollout/episode_return_mean"] == pytest.approx(np.mean(returns), rel=1e-6)
        assert row["rollout/episode_return_std"] == pytest.approx(np.std(returns, ddof=1), rel=1e-6)
        assert row["rollout/episode_return_min"] == pytest.approx(min(returns), rel=1e-6)
        assert row["rollout/episode_return_max"] == pytest.approx(max(returns), rel=1e-6)
        tail = np.quantile(returns, 0.05)
        assert row["rollout/episode_return_p05"] == pytest.approx(tail, rel=1e-6)
        assert row["rollout/steps_to_win_mean"] == pytest.approx(np.mean(lengths))
        assert row["rollout/steps_to_win_p90"] == pytest.approx(np.quantile(lengths, 0.9))
        assert row["rollout/samples"] == float(rollout.weight.sum())
        used = rollout.weight > 0.0
        costs = rollout.info["reward_costs_fraction"][used].double().numpy()
        assert row["rollout/reward_costs_fraction_mean"] == pytest.approx(costs.mean(), rel=1e-6)
        p95 = np.quantile(costs, 0.95)
        assert row["rollout/reward_costs_fraction_p95"] == pytest.approx(p95, rel=1e-6)
        assert row["rollout/reward_costs_fraction_max"] == pytest.approx(costs.max(), rel=1e-6)
        raw = rollout.info["reward_raw_fraction"][used].double().mean()
        assert row["rollout/raw_reward_mean_in_fraction"] == pytest.approx(float(raw), rel=1e-6)


def test_win_rates_have_both_intervals():
    # Wilson: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n); exact: Beta quantiles.
    bounds = telemetry.win_rate_bounds(8, 10)
    z, p, n = 1.959963984540054, 0.8, 10
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    centre, scale = p + z * z / (2 * n), 1 + z * z / n
    assert bounds["rollout/win_rate_wilson_low"] == pytest.approx((centre - half) / scale)
    assert bounds["rollout/win_rate_wilson_high"] == pytest.approx((centre + half) / scale)
    assert bounds["rollout/win_rate_cp_low"] == pytest.approx(0.4439045, abs=1e-7)
    assert bounds["rollout/win_rate_cp_high"] == pytest.approx(0.9747893, abs=1e-7)
    assert all(math.isnan(bound) for bound in telemetry.win_rate_bounds(0, 0).values())
    never = telemetry.win_rate_bounds(0, 20)
    assert never["rollout/win_rate_cp_low"] == 0.0
    assert never["rollout/win_rate_cp_high"] == pytest.approx(1 - 0.025 ** (1 / 20))


@pytest.mark.spec("T-M1", "S3-11")
def test_costs_that_are_not_finite_are_counted_and_left_out():
    fraction = torch.tensor([math.inf, -math.inf, math.nan, 0.1, 0.3, 9.0, math.nan])
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    result = telemetry_rollout.costs(fraction, weight)
    assert float(result["rollout/reward_costs_fraction_mean"]) == pytest.approx(0.2)
    assert float(result["rollout/reward_costs_fraction_max"]) == pytest.approx(0.3)
    assert float(result["rollout/reward_costs_fraction_p95"]) == pytest.approx(0.29)
    assert float(result["rollout/reward_costs_nonfinite_count"]) == 3.0


def test_explained_variance_is_grouped_by_symbol():
    ppo = learner(**MARKET)
    ppo.update()
    update = ppo.update()
    row = metrics(ppo, update)
    rollout, estimates = update.rollout, update.estimates
    symbol, weight = rollout.info["symbol"], rollout.weight
    groups = [
        float(
            statistics.explained_variance(
                estimates.returns, estimates.value, weight=torch.where(symbol == one, weight, 0.0)
            )
        )
        for one in symbol.unique()
    ]
    assert len(groups) > 1
    assert row["train/ev/mean_grouped"] == pytest.approx(np.mean(groups), rel=1e-9)
    assert row["train/ev/median_grouped"] == pytest.approx(np.median(groups), rel=1e-9)
    assert row["train/ev/global"] == float(estimates.explained_variance)
    assert row["train/explained_variance"] == row["train/ev/global"]
    assert row["train/ev/mean_grouped"] != row["train/ev/global"]
    used = weight > 0.0
    wanted, value = (x[used].double().numpy() for x in (estimates.returns, estimates.value))
    assert row["train/ev/corr"] == pytest.approx(np.corrcoef(wanted, value)[0, 1], rel=1e-6)
    assert row["train/ev/bias"] == pytest.approx((value - wanted).mean(), rel=1e-6)
    assert row["train/ev/n_samples"] == float(used.sum())


def test_a_group_without_spread_or_samples_explains_nothing():
    target = torch.tensor([1.0, 2.0, 3.0, 5.0, 5.0, 9.0, 7.0])
    value = torch.tensor([1.0, 2.0, 4.0, 5.0, 6.0, 0.0, 0.0])
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    group = torch.tensor([4, 4, 4, 7, 7, 9, 9])
    result = telemetry_rollout.grouped_explained_variance(target, value, weight, group)
    # Var(0, 0, -1) = 2/9 over Var(1, 2, 3) = 2/3
    assert result[0] == pytest.approx(2 / 3)
    assert result[1:].isnan().all()
    counted = telemetry_rollout.grouped_explained_variance(target, value, weight, group, count=11)
    assert counted[[4, 7, 9]].nan_to_num(7.0).tolist() == result.nan_to_num(7.0).tolist()
    assert counted[[0, 1, 2, 3, 5, 6, 8, 10]].isnan().all()


def test_a_task_without_symbols_is_one_group():
    ppo = learner()
    ppo.update()
    row = metrics(ppo, ppo.update())
    assert math.isfinite(row["train/ev/global"])
    assert row["train/ev/mean_grouped"] == row["train/ev/median_grouped"] == row["train/ev/global"]


def test_symbols_that_a_task_does_not_count_are_found():
    ppo = learner(**MARKET)
    ppo.update()
    update = ppo.update()
    row = metrics(ppo, update)
    symbol = update.rollout.info["symbol"]
    seen = dataclasses.replace(
        update.rollout, info={**update.rollout.info, "symbol": 10 - 3 * symbol}
    )
    ppo.task.symbols = None
    assert not telemetry_rollout.is_counted(ppo, seen)
    other = metrics(ppo, dataclasses.replace(update, rollout=seen))
    assert repr(other) == repr(row)


@pytest.mark.parametrize("unit", [2.0**-30, 1.0, 2.0**40])
def test_groups_and_correlation_are_the_same_in_any_unit(unit):
    target = torch.tensor([1.0, 2.0, 3.0, 5.0, 5.0 * (1.0 + 2.0**-23)])
    value = torch.tensor([1.0, 2.0, 4.0, 5.0, 6.0])
    group, weight = torch.tensor([0, 0, 0, 1, 1]), torch.ones(5)
    result = telemetry_rollout.grouped_explained_variance(
        unit * target, unit * value, weight, group
    )
    assert result[0] == pytest.approx(2 / 3)
    assert result[1].isnan()  # one rounding apart
    actual = telemetry_rollout.correlation(unit * target, unit * value, weight)
    assert actual == pytest.approx(np.corrcoef(target.numpy(), value.numpy())[0, 1], rel=1e-6)


@pytest.mark.parametrize("count", [3, 7, 10, 49])
def test_a_constant_prediction_correlates_with_nothing(count):
    target, value = torch.arange(count).float(), torch.full((count,), 0.1)
    value[0] = torch.nextafter(value[0], torch.tensor(1.0))  # constant up to one rounding
    weight = torch.ones(count)
    assert telemetry_rollout.correlation(target, value, weight).isnan()
    assert telemetry_rollout.correlation(value, target, weight).isnan()


def test_advantages_are_reported_before_and_after():
    ppo = learner()
    update = ppo.update()
    row = metrics(ppo, update)
    used = update.rollout.weight > 0.0
    raw = update.estimates.raw_advantage[used].double().numpy()
    assert row["train/advantages_mean_raw"] == pytest.approx(raw.mean(), rel=1e-6)
    assert row["train/advantages_std_raw"] == pytest.approx(raw.std(ddof=1), rel=1e-6)
    assert row["train/advantages_std_clamped"] == row["train/advantages_std_raw"]
    assert row["train/advantages_norm_mean"] == pytest.approx(0.0, abs=1e-6)
    assert row["train/advantages_norm_std"] == pytest.approx(1.0, abs=1e-5)
    normal = update.advantage[used].abs().max()
    assert row["train/advantages_norm_max_abs"] == pytest.approx(float(normal))


@pytest.mark.parametrize("scale", ["rollout", "slow"])
def test_the_divisor_of_advantages_is_shown(scale):
    ppo = learner(**{"ppo.advantage_scale": scale})
    first = ppo.update()
    once = float(first.mixed[first.rollout.weight > 0.0].double().std())
    assert metrics(ppo, first)["train/advantage_scale"] == pytest.approx(once, rel=1e-6)
    second = ppo.update()
    row, counts = metrics(ppo, second), second.rollout.weight > 0.0
    own = float(second.mixed[counts].double().std())
    assert own != pytest.approx(once, rel=1e-3)
    assert row["train/advantage_scale"] == pytest.approx(once if scale == "slow" else own, rel=1e-6)
    assert row["train/advantages_norm_std"] == pytest.approx(
        own / row["train/advantage_scale"], rel=1e-5
    )


def test_a_spread_of_advantages_below_the_floor_is_shown_and_warned_of():
    ppo = learner(**{"ppo.adv_std_floor": 100.0})
    row = metrics(ppo, ppo.update())
    assert row["train/advantages_std_clamped"] == 100.0
    assert row["train/advantages_std_raw"] < 100.0
    begun = [alarm.name for alarm in Alarms().check(row)]
    assert "warn/advantages_std_below_floor" in begun


@pytest.mark.spec("S2-3", "T-R2")
def test_values_are_decoded_with_what_targets_were_encoded_with():
    ppo = learner()
    name = "train/return_stats/decode_encode_mismatch"
    for _ in range(5):
        update = ppo.update()
        row = metrics(ppo, update)
        assert row[name] == 0.0
        assert row["train/ret_std"] == float(ppo.agent.return_scale.std)
    ppo.agent.return_scale.std += 0.5  # what a late update of the statistics would do
    row = metrics(ppo, update)
    assert row[name] == pytest.approx(0.5)
    assert "error/decode_encode_mismatch" in [alarm.name for alarm in Alarms().check(row)]


def test_predicted_quantiles_are_read_in_reward_units():
    ppo = learner(**{"critic.num_quantiles": 8, "critic.twin_dist_mode": "argmin"})
    update = ppo.update()
    scale = ppo.agent.return_scale
    one = torch.arange(8.0).flip(0).expand_as(update.predicted)  # in any order
    row = metrics(ppo, dataclasses.replace(update, predicted=one.contiguous()))
    # levels 1/4, 1/2, 3/4 are reached by the 2nd, 4th and 6th of 8 atoms
    assert row["train/value_quantile_p50"] == pytest.approx(float(scale.mean + 3.0 * scale.std))
    assert row["train/value_quantile_iqr"] == pytest.approx(float(4.0 * scale.std))
    assert row["train/value_quantile_iqr_norm"] == pytest.approx(4.0)


def test_a_distribution_on_atoms_is_read_the_same_way():
    ppo = learner(**{"critic.kind": "categorical", "critic.num_atoms": 11})
    update = ppo.update()
    scale, atoms = ppo.agent.return_scale, ppo.agent.network.critic.atoms
    distribution = torch.full((11,), 1e-9)
    distribution[[2, 5, 7]] = torch.tensor([0.3, 0.4, 0.3])
    predicted = distribution.log().expand_as(update.predicted).contiguous()
    row = metrics(ppo, dataclasses.replace(update, predicted=predicted))
    expected = float(scale.mean + atoms[5].double() * scale.std)
    assert row["train/value_quantile_p50"] == pytest.approx(expected)
    assert row["train/value_quantile_iqr_norm"] == pytest.approx(float(atoms[7] - atoms[2]))


# -- memory and observations ----------------------------------------------------------------------


@pytest.mark.spec("T-L1", "S0-9")
def test_each_layer_reports_its_own_hidden_state():
    state = torch.zeros(3, 2, 2, 4)  # [B, L, P, H]
    state[:, 0, 0], state[:, 1, 0] = 0.5, -1.0
    state[:, 0, 1] = 7.0
    state[1, 1, 1, 2] = -9.0
    result = {
        name: float(value) for name, value in telemetry_rollout.layer_statistics(state).items()
    }
    assert result == {
        "lstm/h_mean_layer0": 0.5,
        "lstm/h_std_layer0": 0.0,
        "lstm/h_norm_layer0": 1.0,
        "lstm/h_saturated_frac_layer0": 0.0,
        "lstm/c_max_abs_layer0": 7.0,
        "lstm/h_mean_layer1": -1.0,
        "lstm/h_std_layer1": 0.0,
        "lstm/h_norm_layer1": 2.0,
        "lstm/h_saturated_frac_layer1": 1.0,
        "lstm/c_max_abs_layer1": 9.0,
    }


def test_the_state_of_a_real_rollout_is_the_one_reported():
    ppo = learner(**{"network.num_layers": 2})
    row = metrics(ppo, ppo.update())
    hidden = ppo.env_state.memory[:, 1, 0].double()
    assert row["lstm/h_mean_layer1"] == pytest.approx(float(hidden.mean()))
    assert row["lstm/h_norm_layer1"] == pytest.approx(float(hidden.norm(dim=-1).mean()))
    assert row["lstm/h_std_layer1"] == pytest.approx(float(hidden.std(correction=0)))


@pytest.mark.spec("S0-4")
def test_hidden_norms_are_measured_on_both_sides_of_a_reset():
    ppo = learner(**{**MARKET, "network.learn_initial_state": True})
    with torch.no_grad():
        ppo.agent.network.trunk.memory.initial.fill_(0.25)
    ppo.env_state = ppo.env_state._replace(memory=ppo.agent.initial_memory(4))
    begun = float(torch.full((8,), 0.25).norm())
    update = ppo.update()
    row = metrics(ppo, update)
    rollout = update.rollout
    assert int(rollout.reset.sum()) > 3
    assert row["lstm/h_norm_post_reset"] == pytest.approx(begun, rel=1e-6)
    result, used = rollout.hidden_norm.unbind(-1)
    assert torch.equal(result[~rollout.reset], used[~rollout.reset])
    assert not torch.isclose(result[rollout.reset], used[rollout.reset]).any()
    expected = float(result[rollout.reset].double().mean())
    assert row["lstm/h_norm_pre_reset"] == pytest.approx(expected)


@pytest.mark.spec("T-O3", "S2-1", "S2-opt1")
def test_drift_is_that_of_the_columns_which_are_scaled():
    ppo = learner()
    ppo.agent.spec = ppo.agent.spec.replace(unscaled=(ppo.agent.spec.observation_names[0],))
    update = ppo.update()
    count = torch.tensor(10.0, dtype=torch.float64)
    deviation = torch.tensor([1.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    before = Moments(count, torch.zeros(4, dtype=torch.float64), count * deviation.square())
    scale = ppo.agent.observation_scale
    scale.count.copy_(count)
    scale.mean.copy_(torch.tensor([99.0, 0.5, -0.5, 2.0]))
    wider = deviation * torch.tensor([9.0, 1.0, 2.0, 0.5], dtype=torch.float64)
    scale.m2.copy_(count * wider.square())
    row = metrics(ppo, dataclasses.replace(update, observation_before=before))
    assert row["debug/vecnormalize_mean_drift"] == pytest.approx((0.5 + 0.25 + 0.5) / 3)
    assert row["debug/vecnormalize_std_drift"] == pytest.approx(2 * math.log(2.0) / 3)


@pytest.mark.parametrize("mode", ["between_rollouts", "online"])
def test_drift_is_that_of_one_rollout_in_either_mode(mode):
    ppo = learner(**{"observation.obs_stats_update": mode})
    first, second = ppo.update(), None
    assert math.isnan(metrics(ppo, first)["debug/vecnormalize_mean_drift"])
    kept = Moments(*(part.clone() for part in ppo.agent.observation_scale.moments))
    second = ppo.update()
    after = statistics.merge(kept, second.rollout.seen)
    shift, widening = statistics.drift(kept, after)
    row = metrics(ppo, second)
    assert row["debug/vecnormalize_mean_drift"] == pytest.approx(float(shift), rel=1e-6)
    assert row["debug/vecnormalize_std_drift"] == pytest.approx(float(widening), rel=1e-6)


# -- settings and counts --------------------------------------------------------------------------


def test_numbers_of_the_plan_are_those_in_force():
    changes = {
        "value_clip.clip_range_vf": 0.4,
        "value_clip.vf_clip_units": "raw",
        "value_clip.vf_clip_warmup_updates": 1,
        "entropy.ent_coef": 0.02,
        "entropy.ent_coef_decay_steps": 10,
        "ppo.learning_rate": 3e-4,
        "ppo.optimizer_lr_max": 1.0,
        "ppo.microbatch_size": 1,
        "ppo.sequence_length": 8,
    }
    ppo = learner(**changes)
    first = metrics(ppo, ppo.update())
    second = metrics(ppo, ppo.update())
    flags = ("active", "warmup_active", "ev_gate_active")
    assert [first[f"train/vf_clip_{flag}"] for flag in flags] == [0.0, 1.0, 0.0]
    assert [second[f"train/vf_clip_{flag}"] for flag in flags] == [1.0, 0.0, 0.0]
    assert math.isnan(first["train/vf_clip_effective"])
    assert second["train/vf_clip_effective"] == pytest.approx(0.4 / second["train/ret_std"])
    assert first["train/ent_coef"] == pytest.approx(0.02)
    assert second["train/ent_coef_nominal"] == pytest.approx(0.02 - 0.019 / 10)
    assert second["train/ent_coef_eff"] == second["train/ent_coef"]
    assert second["train/entropy_decay_start_update"] == 0.0
    assert [row["train/update"] for row in (first, second)] == [0.0, 1.0]
    assert [row["train/env_steps"] for row in (first, second)] == [64.0, 128.0]
    assert second["train/optimizer_lr"] == ppo.optimizer.param_groups[0]["lr"]
    assert second["train/optimizer_lr"] == pytest.approx(3e-4 * (1 - 64 / 1e6))
    assert second["train/expected_batch_size"] == 16.0
    assert second["train/microbatch_size"] == 8.0
    assert second["train/grad_accum_steps"] == 2.0
    assert second["train/minibatches"] == 8.0
    assert second["config/max_grad_norm"] == 0.5
    assert second["config/critics"] == 2.0


def test_a_gate_on_the_explained_variance_is_told_from_a_warm_up():
    ppo = learner(**{"value_clip.clip_range_vf": 0.4, "value_clip.vf_clip_threshold_ev": 2.0})
    row = metrics(ppo, ppo.update())
    assert row["train/vf_clip_ev_gate_active"] == 1.0
    assert row["train/vf_clip_warmup_active"] == 0.0


def test_minibatches_without_weight_are_counted_and_warned_of():
    ppo = learner()
    row = metrics(ppo, ppo.update())
    names = set(row)
    step = ppo.task.step

    def worthless(state, action, generator):
        state, shown = step(state, action, generator)
        info = shown.info._replace(sample_weight=torch.zeros(4))
        return state, shown._replace(info=info)

    ppo.task.step = worthless
    row = metrics(ppo, ppo.update())
    assert set(row) == names
    assert row["train/minibatches_skipped"] == row["train/minibatches"] == 4.0
    assert row["train/steps_refused"] == row["train/optimizer_steps"] == 0.0
    assert row["rollout/samples"] == 0.0
    begun = [alarm.name for alarm in Alarms().check(row)]
    assert {"warn/empty_rollout_buffer", "warn/empty_microbatch_group"} <= set(begun)
    assert "warn/critic1_vanishing_gradients" not in begun


def test_shares_means_and_maxima_of_nothing_are_unknown():
    x, used = torch.randn(5), torch.zeros(5, dtype=torch.bool)
    empty = torch.zeros(0)
    unknown = [
        values.largest(x, used),
        values.largest(empty, empty.bool()),
        values.mean(x, used.double()),
        values.mean(empty, empty),
        values.share(x.sum(), used.sum()),
    ]
    assert torch.stack(unknown).isnan().all()


@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_masked_means_and_maxima_are_those_of_numpy_in_float64(count):
    x = torch.randn(64, generator=torch.Generator().manual_seed(count))
    used = torch.zeros(64, dtype=torch.bool)
    used[torch.randperm(64, generator=torch.Generator().manual_seed(1))[:count]] = True
    kept = x[used].double().numpy()
    assert float(values.mean(x, used.float())) == pytest.approx(kept.mean(), rel=1e-12)
    assert float(values.largest(x, used)) == kept.max()
    assert float(values.share(used.sum(), torch.tensor(64))) == count / 64
    assert values.mean(x, used.float()).dtype == torch.float64


def test_flags_are_read_with_the_metrics():
    ppo = learner(**{"vgs.enabled": True})
    update = ppo.update()
    flags = [torch.tensor(True), torch.tensor(False)]
    row, said = telemetry.collect(ppo, telemetry.launch(ppo, update), flags)
    assert said == [True, False]
    assert repr(row) == repr(metrics(ppo, update))


def test_gradients_are_read_without_a_step_too():
    ppo = learner(**{"vgs.enabled": True})
    update = ppo.update()
    none = [report._replace(skipped=True) for report in update.learned.minibatches]
    learned = dataclasses.replace(update.learned, minibatches=Minibatches.of(none))
    result = gradients(ppo, dataclasses.replace(update, learned=learned))
    assert all(math.isnan(float(value)) for value in result.values())
