"""The learner learns: a pole is balanced, from the shipped file, in half of its steps.

All five seeds and all tasks are `stormsail bench learn`; this is the one that runs on every change.
"""

from pathlib import Path

from stormsail.bench.learner.learn import Job, reference_lines, run

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STEPS = 24 * 16 * 128


def test_cartpole_is_balanced_in_half_of_the_steps():
    (line,) = reference_lines(["cartpole"], configs=CONFIGS, overrides=[f"ppo.total_steps={STEPS}"])
    found = run(Job(line, seed=0, episodes=128))
    assert (found.steps, found.reason) == (STEPS, "")
    assert found.score >= 400.0  # 9 for a policy that always pushes one way, 22 at random
