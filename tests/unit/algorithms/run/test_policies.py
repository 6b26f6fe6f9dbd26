"""Which policy of an agent is judged: greedy, unless it is significantly worse than sampled."""

import json
import math
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch

from stormsail.algorithms import trainer
from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.run.evaluate import evaluate
from stormsail.algorithms.run.tasks import agent_spec, make_task
from stormsail.cli.learning.train import finish
from stormsail.core.errors import ConfigError
from stormsail.core.task import DiscreteActions, Step
from stormsail.evaluation.stats import paired
from stormsail.modules import Agent, AgentSpec, NetworkConfig
from stormsail.modules.agent import ActionSpec
from training_lab import run_all, run_for, small

STEPS, EPISODES = 10, 64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class State(NamedTuple):
    left: torch.Tensor
    before: torch.Tensor


class Info(NamedTuple):
    sample_weight: torch.Tensor


class Alternate:
    """Ten steps: +1 for another action than the step before, -1 for the same.

    The likeliest action, always the same, is a trap: it returns 0 - 9 = -9 and the start. The start
    of an episode adds a number whose spread is ten times that, drawn from the generator.
    """

    actions = DiscreteActions(2)
    observation_names = ("constant",)
    observation_size = 1
    dtype = torch.float32

    def __init__(self, batch: int = EPISODES) -> None:
        self.batch, self.device = batch, torch.device("cpu")
        self.starts: list[torch.Tensor] = []

    def reset(self, generator: torch.Generator) -> tuple[State, torch.Tensor]:
        self.starts.append(100.0 * torch.randn(self.batch, generator=generator))
        whole = torch.full((self.batch,), STEPS)
        return State(whole, torch.full((self.batch,), -1)), torch.ones(self.batch, 1)

    def step(self, state: State, action: torch.Tensor, generator: torch.Generator) -> Any:
        torch.rand(self.batch, generator=generator)  # a task may draw at every step
        first = state.left == STEPS
        gain = torch.where(action == state.before, -1.0, 1.0)
        reward = torch.where(first, self.starts[-1], gain)
        left = state.left - 1
        step = Step(torch.ones(self.batch, 1), reward, left == 0, left < 0, Info(reward))
        return State(left, action), step


class Tabled(Alternate):
    """Episodes of one step that return what a table says: a row for each pass."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__(len(rows[0]))
        self.rows = rows

    def step(self, state: State, action: torch.Tensor, generator: torch.Generator) -> Any:
        state, step = super().step(state, action, generator)
        row = self.rows[(len(self.starts) - 1) % len(self.rows)]
        ended = torch.ones(self.batch, dtype=torch.bool)
        return state, step._replace(reward=torch.tensor(row), terminated=ended)


def nearly_even(first=0.51) -> Agent:
    """Return an agent that takes the first of two actions with this probability, always."""
    spec = AgentSpec(
        observation_names=("constant",),
        actions=ActionSpec.of(DiscreteActions(2)),
        network=NetworkConfig(encoder_sizes=(2,), lstm_hidden_size=2, head_sizes=(2,)),
    )
    agent = Agent(spec, seeded())
    with torch.no_grad():
        agent.network.actor_last.weight.zero_()
        agent.network.actor_last.bias.copy_(torch.tensor([first, 1.0 - first]).log())
    return agent


def both(task, agent=None, **options):
    agent = agent or nearly_even()
    return evaluate(task, agent, seeded(1), policy="both", actions=seeded(2), **options)


def test_an_agent_that_is_good_sampled_and_terrible_greedy_is_judged_sampled():
    """Sampled it returns a mean of 9 (2 * .51 * .49 - .51² - .49²) = -.0036 beside the start."""
    task = Alternate()
    result = both(task)
    start = float(task.starts[0].double().mean())
    assert result.policy == "sampled"
    assert result.greedy_score == pytest.approx(start - 9.0, abs=1e-4)
    assert result.score == result.sampled_score
    assert result.policy_gap == pytest.approx(9.0, abs=4 * 3.0 / 8.0)
    assert result.policy_p == 2.0**-EPISODES  # all signs are alike
    assert result.greedy_is_worse
    alone = evaluate(Alternate(), nearly_even(), seeded(1), policy="sampled", actions=seeded(2))
    for name in ("score", "spread", "cvar", "cvar_error", "low", "high", "episodes"):
        assert getattr(result, name) == getattr(alone, name)


def test_both_policies_begin_at_the_same_starts():
    task = Alternate()
    both(task)
    assert len(task.starts) == 2
    assert torch.equal(*task.starts)


class Watched:
    """A task that keeps its starts, and what its generator would draw next at every step."""

    def __init__(self, task):
        self._task, self.starts, self.draws = task, [], []
        self.batch, self.device = task.batch, task.device

    def reset(self, generator):
        state, observation = self._task.reset(generator)
        self.starts.append(observation)
        self.draws.append([])
        return state, observation

    def step(self, state, action, generator):
        self.draws[-1].append(generator.get_state())
        return self._task.step(state, action, generator)


@pytest.mark.parametrize("name", ["market", "cartpole-lstm", "gym:CartPole-v1", "gym:Pendulum-v1"])
def test_tasks_give_both_policies_the_same_starts_and_random_numbers(name):
    config = small(**({"task__name": name} if name.startswith("gym:") else {"task": name}))
    task = Watched(make_task(config, batch=6, purpose="evaluation"))
    agent = Agent(agent_spec(config, make_task(config, batch=1)), seeded(7))
    both(task, agent, max_steps=40)
    first, second = task.starts
    assert torch.equal(first, second)
    assert float(first.double().std(0).max()) > 0.0  # the environments differ from each other
    common = list(zip(*task.draws, strict=False))
    assert len(common) > 5
    assert all(torch.equal(*pair) for pair in common)


def test_sampled_actions_are_a_stream_of_their_own():
    """Other draws of actions leave the starts as they are; equal ones repeat the evaluation."""
    first, again, other = (
        evaluate(task, nearly_even(), seeded(1), policy="sampled", actions=seeded(seed))
        for task, seed in ((Alternate(), 2), (Alternate(), 2), (Alternate(), 3))
    )
    assert first == again
    assert first.score != other.score
    assert abs(first.score - other.score) < 5.0  # the starts alone spread by 100


def test_greedy_that_is_slightly_and_not_significantly_worse_is_judged():
    """Ten pairs, d = 1.1 five times and -.9 five times: mean .1, s = 1.0541, t = .3, p = .3855."""
    greedy = [float(place) for place in range(10)]
    sampled = [a + (1.1 if place % 2 else -0.9) for place, a in enumerate(greedy)]
    result = both(Tabled(greedy, sampled))
    assert (result.policy, result.greedy_is_worse) == ("greedy", False)
    assert (result.score, result.greedy_score) == (4.5, 4.5)
    assert result.sampled_score == pytest.approx(4.6, abs=1e-6)
    assert result.policy_gap == pytest.approx(0.1, abs=1e-6)
    assert result.policy_p == pytest.approx(0.3855, abs=1e-4)


def test_greedy_that_is_better_is_judged():
    result = both(Tabled([5.0, 6.0, 7.0, 8.0, 9.0, 4.0], [1.0] * 6))
    assert (result.policy, result.score) == ("greedy", 6.5)
    assert result.policy_p > 0.99


def test_fewer_than_five_episodes_judge_the_greedy_policy():
    assert both(Tabled([0.0] * 4, [9.0, 9.1, 9.0, 9.1])).policy == "greedy"
    assert both(Tabled([0.0] * 5, [9.0, 9.1, 9.0, 9.1, 9.0])).policy == "sampled"
    alone = both(Tabled([0.0], [9.0]))
    assert (alone.policy, alone.score, alone.policy_gap) == ("greedy", 0.0, 9.0)
    assert math.isnan(alone.policy_p)
    assert math.isnan(alone.low)
    assert not alone.greedy_is_worse


def test_equal_differences_decide_by_their_number():
    assert both(Tabled([1.0] * 6, [2.0] * 6)).policy_p == 2.0**-6
    assert both(Tabled([1.0] * 6, [2.0] * 6)).policy == "sampled"
    assert both(Tabled([2.0] * 6, [2.0] * 6)).policy == "greedy"


def test_the_interval_beside_the_score_is_that_of_the_judged_episodes():
    greedy, sampled = [1.0, 2.0, 3.0, 4.0, 5.0], [101.0, 112.0, 123.0, 134.0, 145.0]
    result = evaluate(Tabled(greedy), nearly_even(), seeded())
    assert (result.low, result.high) == pytest.approx((3.0 - 1.963243, 3.0 + 1.963243), abs=1e-6)
    result = both(Tabled(greedy, sampled))
    assert (result.policy, result.score) == ("sampled", 123.0)
    assert (result.low, result.high) == pytest.approx((123 - 21.595673, 123 + 21.595673), abs=1e-5)


def test_a_policy_that_was_not_evaluated_has_no_score():
    greedy = evaluate(Alternate(), nearly_even(), seeded(1))
    assert (greedy.policy, greedy.score) == ("greedy", greedy.greedy_score)
    sampled = evaluate(Alternate(), nearly_even(), seeded(1), policy="sampled", actions=seeded())
    assert (sampled.policy, sampled.score) == ("sampled", sampled.sampled_score)
    unknown = (
        greedy.sampled_score, sampled.greedy_score, greedy.policy_gap, sampled.policy_gap,
        greedy.policy_p, sampled.policy_p,
    )  # fmt: skip
    assert all(map(math.isnan, unknown))
    assert not greedy.greedy_is_worse


def test_the_greedy_part_of_both_is_that_of_greedy_alone_to_the_last_bit():
    alone = evaluate(Alternate(), nearly_even(), seeded(1))
    assert both(Alternate()).greedy_score == alone.score


@pytest.mark.refusal
def test_sampling_without_a_generator_is_refused():
    with pytest.raises(ConfigError, match="must have a generator"):
        evaluate(Alternate(), nearly_even(), seeded(), policy="both")


def test_both_is_the_default():
    assert TrainConfig().validation.policy == "both"


# ------------------------------------------------------------------------------------- in a run

GREEDY = [-30.0, -31.0, -29.0, -30.0, -33.0, -30.0]
SAMPLED = [1.0, 2.0, 4.0, 1.0, 2.0, 5.0]
"""Mean 2.5, s² = (2.25 + .25 + 2.25 + 2.25 + .25 + 6.25) / 5 = 2.7, t of 5 degrees of freedom at
.975 is 2.570582: half = 2.570582 sqrt(2.7 / 6) = 1.724399."""
HALF = 1.724399


class Cut:
    """The evaluation task of a run, whose episodes end at once with what a table says."""

    def __init__(self, task, *rows):
        self._task, self._rows, self.passes = task, rows, 0
        self.batch, self.device = task.batch, task.device

    def reset(self, generator):
        self.passes += 1
        return self._task.reset(generator)

    def step(self, state, action, generator):
        state, step = self._task.step(state, action, generator)
        reward = torch.tensor(self._rows[(self.passes - 1) % len(self._rows)])
        return state, step._replace(reward=reward, terminated=torch.ones_like(step.terminated))


@pytest.fixture
def tabled(monkeypatch):
    """Let the greedy policy return one row of a table and the sampled one another."""

    def install(*rows):
        make = trainer.make_task

        def made(config, *, purpose="train", **options):
            task = make(config, purpose=purpose, **options)
            return Cut(task, *rows) if purpose == "evaluation" else task

        monkeypatch.setattr(trainer, "make_task", made)

    return install


def events(run, kind):
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def alarms(run):
    raised = [
        alarm for alarm in events(run, "alarm") if alarm["name"] == "warn/greedy_policy_worse"
    ]
    return [(alarm["update"], alarm["value"], alarm["message"]) for alarm in raised]


def test_a_run_judges_and_keeps_the_sampled_agent_and_raises_the_alarm(tabled, tmp_path, capsys):
    tabled(GREEDY, SAMPLED)
    done = run_all(small(validation__episodes=6), tmp_path / "run")
    assert (done.best_score, done.best_policy, done.best_episodes) == (2.5, "sampled", 6)
    assert done.best_interval == pytest.approx((2.5 - HALF, 2.5 + HALF), abs=1e-6)
    finish(done)
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{done.path}: finished after 192 steps, best score 2.5 (0.7756 to 4.224, 6 episodes, "
        "sampled policy)"
    )
    assert Agent.load(done.best).judged_policy == "sampled"
    assert done.agent.judged_policy == "sampled"
    first, last = events(done, "trial")
    assert (first["update"], last["update"]) == (4, 6)
    assert (first["policy"], first["score"], first["score_greedy"]) == ("sampled", 2.5, -30.5)
    assert first["score_sampled"] == 2.5
    assert (first["score_low"], first["score_high"]) == pytest.approx((2.5 - HALF, 2.5 + HALF))
    assert first["policy_p"] == 2.0**-6
    message = (
        "the likeliest actions return -30.5, 33 less than sampled ones (p = 0.016): the agent is "
        "judged, and backtests trade, by its sampled policy; train longer or lower "
        "`entropy.ent_coef` until the policy has decided, or set `validation.policy` to `sampled`"
    )
    assert alarms(done) == [(4, 33.0, message), (6, 33.0, message)]
    table = pq.read_table(done.path / "metrics.parquet").to_pydict()
    expected = {
        "score": 2.5, "score_greedy": -30.5, "score_sampled": 2.5, "policy_gap": 33.0,
        "greedy_worse": 1.0, "policy_p": 2.0**-6, "score_low": 2.5 - HALF, "score_high": 2.5 + HALF,
    }  # fmt: skip
    for name, value in expected.items():
        column = table[f"validation/{name}"]
        assert column[3] == pytest.approx(value, abs=1e-6)
        assert math.isnan(column[0])


def test_a_run_whose_greedy_policy_is_no_worse_keeps_it_and_is_quiet(tabled, tmp_path):
    tabled(SAMPLED, SAMPLED)
    done = run_all(small(validation__episodes=6), tmp_path / "run")
    assert (done.best_policy, Agent.load(done.best).judged_policy) == ("greedy", "greedy")
    assert done.agent.judged_policy == "greedy"
    assert alarms(done) == []
    table = pq.read_table(done.path / "metrics.parquet").to_pydict()
    assert table["validation/greedy_worse"][3] == 0.0


@pytest.mark.parametrize("policy", ["greedy", "sampled"])
def test_a_run_can_be_judged_by_one_policy_alone(policy, tabled, tmp_path):
    tabled(GREEDY)
    config = small(validation__episodes=6, validation__policy=policy)
    done = run_all(config, tmp_path / "run")
    assert (done.best_score, done.best_policy) == (-30.5, policy)
    assert Agent.load(done.best).judged_policy == policy
    assert alarms(done) == []
    assert events(done, "trial")[0]["policy_p"] is None


@pytest.mark.parametrize(("policy", "judged"), [("both", "greedy"), ("sampled", "sampled")])
def test_an_agent_that_was_never_evaluated_is_greedy_unless_the_settings_say_sampled(
    policy, judged, tmp_path
):
    config = small(validation__every_updates=0, validation__policy=policy)
    done = run_for(config, tmp_path / "run", 1)
    assert done.agent.judged_policy == judged
    done.agent.save(tmp_path / "agent")
    assert Agent.load(tmp_path / "agent").judged_policy == judged


def test_a_single_episode_has_no_interval(tabled, tmp_path, capsys):
    tabled([7.5])
    done = run_all(small(validation__episodes=1), tmp_path / "run")
    assert done.best_interval is None
    finish(done)
    line = capsys.readouterr().out.splitlines()[0]
    assert line.endswith("best score 7.5 (1 episode, greedy policy)")


def test_a_resumed_run_knows_the_judged_policy_and_the_interval(tabled, tmp_path):
    tabled(GREEDY, SAMPLED)
    config = small(validation__episodes=6)
    whole = run_all(config, tmp_path / "run")
    again = run_all(config, tmp_path / "run")
    assert again.agent.judged_policy == "sampled"
    assert (again.best_policy, again.best_interval, again.best_episodes) == (
        whole.best_policy, whole.best_interval, whole.best_episodes,
    )  # fmt: skip


def test_the_level_of_the_decision_is_the_one_of_the_test():
    """Differences of deviation 1 and a mean of t / sqrt 20: p just above and just below 5 %."""
    source = torch.Generator().manual_seed(5)
    noise = torch.randn(20, generator=source).double()
    noise = (noise - noise.mean()) / noise.std()
    for t, policy in ((1.72, "greedy"), (1.74, "sampled")):  # t of 19 degrees at .95 is 1.7291
        result = both(Tabled([0.0] * 20, (noise + t / math.sqrt(20)).tolist()))
        assert (result.policy_p < paired.LEVEL, result.policy) == (policy == "sampled", policy)
