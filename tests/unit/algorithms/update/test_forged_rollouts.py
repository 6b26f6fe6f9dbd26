"""Rollouts in which an adversary forges what the agent is shown: who is shown what, and when."""

import pytest
import torch

from learner_lab import ACTIONS, FEATURES, aged, learner, settings
from stormsail.algorithms.config import AdversaryConfig
from stormsail.algorithms.update import schedules
from stormsail.algorithms.update.adversary import Adversary, Forger, forger_of
from stormsail.algorithms.update.rollout import collect

FORGED = {
    "adversary__mode": "rollout", "adversary__warmup_updates": 0, "adversary__epsilon": 0.3,
    "adversary__attack_method": "fgsm",
}  # fmt: skip
MEMORIES = ["lstm", "none"]


def forger(count, *, columns=(0, 1, 2), seed=3, epsilon=0.3, **changes):
    config = AdversaryConfig(mode="rollout", **{"attack_method": "fgsm", **changes})
    source = torch.Generator().manual_seed(seed)
    return Forger(Adversary(torch.tensor(list(columns)), source), config, epsilon, count)


def situation(name="categorical", memory="lstm"):
    actions, distribution = ACTIONS[name]
    ppo = aged(learner(settings(**distribution, network__memory=memory), actions=actions))
    source = torch.Generator().manual_seed(5)
    seen = torch.randn(ppo.task.batch, len(FEATURES), generator=source)
    start = ppo.agent.initial_memory(ppo.task.batch)
    return ppo, seen, start + 0.5 * torch.randn(start.shape, generator=source)


def divergence(agent, seen, shown, memory):
    decide = [agent.draw(x, memory, deterministic=True).parameters for x in (seen, shown)]
    return agent.network.head.kl(*decide)


def played(forger_, ppo, *, steps=16):
    """Return a rollout from the learner's place, with streams of its own."""
    streams = tuple(torch.Generator().manual_seed(seed) for seed in (11, 12))
    return collect(
        ppo.task, ppo.agent, ppo.env_state, steps=steps, sequence_length=8, generators=streams,
        forger=forger_,
    )  # fmt: skip


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", ACTIONS)
def test_the_last_environments_are_misled_and_the_first_see_the_truth(name, memory):
    ppo, seen, state = situation(name, memory)
    clean = 1
    with torch.no_grad():
        shown = forger(len(seen) - clean).forge(ppo.agent, seen, state, None)
    assert torch.equal(shown[:clean], seen[:clean])
    # one step of the whole radius: a corner of the box
    corner = torch.full_like(seen[clean:], 0.3)
    torch.testing.assert_close((shown - seen)[clean:].abs(), corner, rtol=1e-5, atol=0.0)
    strong = forger(len(seen) - clean, attack_method="pgd", attack_steps=10, attack_lr=0.1)
    shown = strong.forge(ppo.agent, seen, state, None)
    source = torch.Generator().manual_seed(8)
    corners = [seen + 0.3 * torch.randn(seen.shape, generator=source).sign() for _ in range(16)]
    own, *random = (
        float(divergence(ppo.agent, seen, x, state)[clean:].mean()) for x in (shown, *corners)
    )
    assert own > 1.1 * sum(random) / 16


def test_a_decision_is_attacked_from_the_memory_that_the_agent_has():
    ppo, seen, state = situation()
    shown = forger(len(seen), attack_method="pgd").forge(ppo.agent, seen, state, None)
    other = forger(len(seen), attack_method="pgd").forge(ppo.agent, seen, 0.0 * state, None)
    assert not torch.equal(shown, other)
    own, wrong = (float(divergence(ppo.agent, seen, x, state).sum()) for x in (shown, other))
    assert own > wrong


def test_columns_of_its_own_stay_as_they_are():
    ppo, seen, state = situation()
    shown = forger(len(seen), columns=(1,)).forge(ppo.agent, seen, state, None)
    changed = (shown != seen).all(0)
    assert changed.tolist() == [False, True, False]


@pytest.mark.parametrize("memory", MEMORIES)
def test_experience_is_that_of_the_policy_on_what_it_was_shown(memory):
    """Log probabilities, values and memory of a rollout are those of a replay of its rows."""
    ppo, _, _ = situation("gaussian", memory)
    _, rollout = played(forger(4), ppo)
    agent = ppo.agent
    for first in (0, 8):
        rows = slice(first, first + 8)
        output = agent.network(
            rollout.observation[rows], rollout.memory[first // 8], rollout.reset[rows]
        )
        log_prob = agent.network.head.log_prob(output.actor, rollout.raw_action[rows])
        torch.testing.assert_close(log_prob, rollout.log_prob[rows], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(output.critic, rollout.predicted[rows], rtol=1e-4, atol=1e-5)


def test_the_world_and_its_statistics_are_the_real_ones():
    """Scripted observations do not depend on actions, so they are known."""
    ppo, _, _ = situation()
    (after, rollout), (true_after, true) = played(forger(4), ppo), played(None, ppo)
    assert torch.equal(after.observation, true_after.observation)
    for forged, clean in zip(rollout.seen, true.seen, strict=True):
        assert torch.equal(forged, clean)
    half = ppo.task.batch - 4
    size = (rollout.observation - true.observation).abs().amax(-1)
    torch.testing.assert_close(size, rollout.forged, rtol=1e-5, atol=1e-6)
    assert not bool(size[:, :half].any())
    assert float(size[:, half:].min()) == pytest.approx(0.3, rel=1e-4)
    assert true.forged is None
    # nobody else's experience changes: only attacked environments take other actions
    assert torch.equal(rollout.observation[:, :half], true.observation[:, :half])
    assert torch.equal(rollout.predicted[:, :half], true.predicted[:, :half])


def test_what_follows_the_last_step_is_shown_forged_too():
    ppo, _, _ = situation()
    kept, misled = [], forger(ppo.task.batch)

    class Watching:
        def forge(self, agent, seen, memory, mask):
            kept.append((seen, misled.forge(agent, seen, memory, mask)))
            return kept[-1][1]

        def size(self, delta):
            return misled.size(delta)

    after, rollout = played(Watching(), ppo)
    assert len(kept) == 17
    memory = torch.where(
        after.reset[:, None, None, None], ppo.agent.initial_memory(ppo.task.batch), after.memory
    )
    last = ppo.agent.draw(kept[-1][1], memory, deterministic=True)
    assert torch.equal(rollout.next_predicted[-1], last.predicted)
    assert float((kept[-1][1] - kept[-1][0]).abs().min()) > 0.29


def test_draws_of_the_attack_come_from_its_own_stream():
    ppos = [aged(learner(settings(**FORGED))) for _ in range(2)]
    for ppo in ppos:
        ppo.update()
    torch.manual_seed(1)  # no stream of anyone
    states = [ppo.generators.state() for ppo in ppos]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    weights = [ppo.agent.state_dict() for ppo in ppos]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    plain = aged(learner(settings()))
    plain.update()
    mine, its = states[0], plain.generators.state()
    assert mine.keys() - its.keys() == {"torch:adversary"}
    assert torch.equal(mine["torch:task"], its["torch:task"])
    assert not torch.equal(plain.agent.state_dict()["network.actor_last.weight"],
                           weights[0]["network.actor_last.weight"])  # fmt: skip


def test_the_epochs_see_the_rows_of_the_rollout_and_no_further_attack():
    ppo = aged(learner(settings(**FORGED)))
    update = ppo.update()
    sums = [report.sums for report in update.learned.minibatches]
    assert sum(float(part.attacks) for part in sums) == 0.0
    # before the first step the ratio is 1: the policy of now at what it was shown then
    assert float(sums[0].log_ratio_max) < 1e-4
    assert float(update.rollout.forged.max()) == pytest.approx(0.3, rel=1e-4)


def test_while_the_radius_is_0_or_no_environment_is_attacked_nobody_forges():
    config = AdversaryConfig(mode="rollout")
    held = forger(1).adversary
    assert forger_of(held, config, epsilon=0.0, envs=8) is None
    assert forger_of(None, config, epsilon=0.1, envs=8) is None
    none = AdversaryConfig(mode="rollout", adversarial_ratio=0.0)
    assert forger_of(held, none, epsilon=0.1, envs=8) is None
    assert forger_of(held, AdversaryConfig(mode="kl_reg"), epsilon=0.1, envs=8) is None
    third = AdversaryConfig(mode="rollout", adversarial_ratio=0.3)
    assert forger_of(held, third, epsilon=0.1, envs=8).attacked == 2  # 2.4, rounded


def test_the_radius_of_a_rollout_is_that_of_its_update():
    ppo = aged(learner(settings(**{**FORGED, "adversary__warmup_updates": 2})))
    radii = [schedules.epsilon(ppo.config.adversary, 0.0, update=number) for number in range(3)]
    assert radii == [0.0, 0.15, 0.3]
    rollouts = [ppo.update().rollout for _ in range(3)]
    assert rollouts[0].forged is None
    for rollout, radius in zip(rollouts[1:], radii[1:], strict=True):
        assert float(rollout.forged.max()) == pytest.approx(radius, rel=1e-4)
