"""Masks from the task to the loss: the row they belong to, and every number that they change."""

import math

import numpy as np
import pytest
import torch

from learner_lab import FEATURES, Scripted, aged, learner, script, settings
from stormsail.algorithms.ppo import Ppo
from stormsail.algorithms.risk.gradient import risk_gradient_norm
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.update import epochs
from stormsail.algorithms.update.losses import batch_sums
from stormsail.algorithms.update.rollout import begin, collect
from stormsail.core.generators import Generators
from stormsail.core.task import DiscreteActions, MultiDiscreteActions
from stormsail.functional import policy
from stormsail.modules.agent import ActionSpec, Agent, AgentSpec

ONE_CHOICE, TWO_CHOICES = DiscreteActions(4), MultiDiscreteActions((3, 2))
BOTH = pytest.mark.parametrize("actions", [ONE_CHOICE, TWO_CHOICES], ids=["one", "two"])


def counts_of(actions):
    return actions.counts if isinstance(actions, MultiDiscreteActions) else (actions.count,)


class Masked(Scripted):
    """A script with a table of masks, [R, B, D]; a forbidden action is an error."""

    def __init__(self, rows, actions, seed=5):
        super().__init__(rows, actions)
        counts = counts_of(actions)
        source = torch.Generator().manual_seed(seed)
        shape = (*rows.reward.shape, sum(counts))
        self.masks = torch.rand(shape, generator=source) < 0.5
        first = 0
        for count in counts:  # one of each choice is always allowed
            sure = torch.randint(count, shape[:2], generator=source) + first
            self.masks.scatter_(-1, sure[..., None], True)
            first += count

    def action_mask(self, state):
        return self._at(self.masks, state.row)

    def step(self, state, action, generator):
        assert bool(allowed(self.action_mask(state), action, self.actions).all())
        return super().step(state, action, generator)


def allowed(mask, action, actions):
    """Return whether the classes of an action are allowed, [*b]."""
    counts = counts_of(actions)
    offsets = torch.tensor(np.cumsum((0, *counts[:-1])))
    classes = (action if isinstance(actions, MultiDiscreteActions) else action[..., None]) + offsets
    return mask.gather(-1, classes).all(-1)


def masked_learner(actions, config=None, seed=0) -> Ppo:
    config, task, generators = config or settings(), Masked(script(), actions), Generators(seed)
    spec = AgentSpec(
        observation_names=FEATURES, actions=ActionSpec.of(actions),
        network=config.network, policy=config.policy, critic=config.critic,
    )  # fmt: skip
    return Ppo(task, Agent(spec, generators.stream("weights")), config, generators)


def batches(ppo, monkeypatch):
    """Return the minibatches of an update, and their sums before its first step."""
    seen = []

    def watch(agent, batch, *rest, **named):
        result = batch_sums(agent, batch, *rest, **named)
        seen.append((batch, result, rest))
        return result

    monkeypatch.setattr(epochs, "batch_sums", watch)
    ppo.update()
    return seen


@BOTH
def test_the_mask_of_every_row_is_that_of_the_state_that_was_acted_in(actions):
    ppo = aged(masked_learner(actions))
    streams = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    _, rollout = collect(
        ppo.task, ppo.agent, ppo.env_state, steps=8, sequence_length=8, generators=streams
    )
    assert torch.equal(rollout.mask, ppo.task.masks[:8])
    assert bool(allowed(rollout.mask, rollout.raw_action, actions).all())
    forbidden = ~rollout.mask
    assert bool((rollout.parameters[forbidden] == -1e30).all())
    assert bool((rollout.parameters[rollout.mask].abs() < 100.0).all())


@BOTH
@pytest.mark.spec("X10")
def test_before_the_first_step_every_ratio_is_one_under_masks(actions, monkeypatch):
    config = settings(ppo__sequence_length=4, ppo__n_epochs=2, ppo__batch_size=4)
    ppo = aged(masked_learner(actions, config))
    batch, sums, _ = batches(ppo, monkeypatch)[0]
    assert batch.mask.shape == (4, 4, sum(counts_of(actions)))
    assert float(sums.log_ratio_max.detach()) <= 1e-6
    assert float(sums.analytic_kl.detach().abs() / sums.weight) <= 1e-7
    assert int(sums.nan + sums.inf) == 0


@BOTH
def test_training_under_masks_stays_finite_and_never_draws_a_forbidden_action(actions):
    config = settings(bc__awr_coef=0.5, kl__penalty=True, kl__target_kl=0.02)
    ppo = masked_learner(actions, config)
    for _ in range(6):
        update = ppo.update()  # the task itself refuses forbidden actions
        assert ppo.refusals == 0
        for report in update.learned.minibatches:
            assert all(bool(part.isfinite().all()) for part in report.sums)
    assert all(bool(parameter.isfinite().all()) for parameter in ppo.agent.parameters())


def numbers_by_hand(logits, mask, counts):
    """Return probabilities of each choice over its allowed classes, in float64."""
    logits, parts, first = logits.double().numpy(), [], 0
    for count in counts:
        part, open_ = logits[..., first : first + count], mask[..., first : first + count].numpy()
        weight = np.where(open_, np.exp(part), 0.0)
        parts.append(weight / weight.sum(-1, keepdims=True))
        first += count
    return parts


@BOTH
def test_entropy_divergence_and_imitation_are_over_allowed_actions_only(actions, monkeypatch):
    config = settings(bc__awr_coef=0.5, entropy__ent_coef=0.3)
    ppo = aged(masked_learner(actions, config))
    batch, _, (now, *_) = batches(ppo, monkeypatch)[0]
    sums = batch_sums(ppo.agent, batch, now, config, torch.Generator().manual_seed(0))
    output = ppo.agent.network(batch.observation, batch.memory, batch.reset)
    new = numbers_by_hand(output.actor.detach(), batch.mask, counts_of(actions))
    old = numbers_by_hand(batch.parameters, batch.mask, counts_of(actions))
    weight = batch.weight.double().numpy()

    def log(p):
        return np.log(np.where(p > 0.0, p, 1.0))

    entropy = sum(-(p * log(p)).sum(-1) for p in new)
    divergence = sum((p * (log(p) - log(q))).sum(-1) for p, q in zip(old, new, strict=True))
    raw = batch.raw_action.numpy().reshape(*weight.shape, -1)
    log_prob = sum(
        np.take_along_axis(log(p), raw[..., d : d + 1], -1)[..., 0] for d, p in enumerate(new)
    )
    counted = {"beta": config.bc.awr_temperature, "max_weight": config.bc.max_weight}
    imitated = -policy.awr_weight(batch.advantage, **counted).double().numpy() * log_prob
    assert float(divergence.max()) > 1e-6  # the weights have moved since
    for name, column in {"entropy": entropy, "analytic_kl": divergence, "bc": imitated}.items():
        wanted = (weight * column).sum()
        assert float(getattr(sums, name).detach()) == pytest.approx(wanted, rel=1e-4), name


def test_a_single_allowed_action_has_no_entropy_and_no_gradient(monkeypatch):
    ppo = aged(masked_learner(ONE_CHOICE))
    ppo.task.masks.zero_()
    ppo.task.masks[..., 2] = True
    batch, sums, (now, *_) = batches(ppo, monkeypatch)[0]
    assert float(sums.entropy.detach()) == 0.0
    assert batch.raw_action.unique().tolist() == [2]
    assert float(batch.log_prob.abs().max()) == 0.0
    ppo.agent.zero_grad()
    batch_sums(ppo.agent, batch, now, ppo.config, torch.Generator()).loss.backward()
    assert float(ppo.agent.network.actor_last.weight.grad.abs().max()) == 0.0


def test_the_gradient_of_the_risk_term_knows_the_mask(monkeypatch):
    ppo = aged(masked_learner(ONE_CHOICE))
    ppo.task.masks.zero_()
    ppo.task.masks[..., 1] = True
    batch, *_ = batches(ppo, monkeypatch)[0]
    norm = risk_gradient_norm(ppo.agent, batch, torch.ones_like(batch.weight), 0.0, ppo.config)
    assert float(norm) == 0.0  # what must be done cannot be done more often


@BOTH
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_agent_never_takes_a_forbidden_action(actions, deterministic):
    agent = aged(masked_learner(actions)).agent
    n, source = 100_000, torch.Generator().manual_seed(6)
    counts = counts_of(actions)
    mask = torch.zeros(n, sum(counts), dtype=torch.bool)
    first = 0
    for count in counts:  # all but one class of each choice
        gone = torch.randint(count, (n,), generator=source)
        mask[:, first : first + count] = torch.arange(count) != gone[:, None]
        first += count
    seen = 3.0 * torch.randn(n, len(FEATURES), generator=source)
    memory = agent.initial_memory(n)
    made = agent.decide(seen, memory, deterministic=deterministic, generator=source, mask=mask)
    assert bool(allowed(mask, made.action, actions).all())
    assert bool(made.log_prob.isfinite().all())
    free = agent.decide(seen, memory, deterministic=deterministic, generator=source)
    assert not bool(allowed(mask, free.action, actions).all())


@BOTH
def test_evaluation_keeps_to_the_masks(actions):
    ppo = aged(masked_learner(actions))
    ends = (ppo.task.told.terminated | ppo.task.told.truncated).any(0)
    result = evaluate(ppo.task, ppo.agent, torch.Generator().manual_seed(0), max_steps=32)
    assert (result.episodes, result.unfinished) == (len(ends), int((~ends).sum()))


def test_a_task_without_masks_has_none_in_its_rollouts():
    ppo = learner()
    streams = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    start = begin(ppo.task, ppo.agent, streams[1])
    _, rollout = collect(ppo.task, ppo.agent, start, steps=8, sequence_length=4, generators=streams)
    assert rollout.mask.shape == (8, 8, 0)


def test_log_probabilities_of_two_choices_add_up(monkeypatch):
    ppo = aged(masked_learner(TWO_CHOICES))
    ppo.task.masks.fill_(True)
    with torch.no_grad():
        ppo.agent.network.actor_last.weight.zero_()
        ppo.agent.network.actor_last.bias.zero_()
    batch, sums, _ = batches(ppo, monkeypatch)[0]
    # uniform: log(1/3) + log(1/2) for every action, and as much entropy
    assert batch.log_prob.flatten().tolist() == pytest.approx([-math.log(6.0)] * 64, rel=1e-6)
    assert float(sums.entropy.detach() / sums.weight) == pytest.approx(math.log(6.0), rel=1e-6)
