"""Environments of Gymnasium with spaces, masks and infos that its own ones do not have.

They are registered when this module is imported, under `stormsail-test/`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

FOLDER = "stormsail-test/"


class Echo(gymnasium.Env):
    """Shows samples of any space, remembers the action it was given, and ends after `length`."""

    def __init__(self, seen: Any = None, done: Any = None, length: int = 3) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,)) if seen is None else seen
        self.action_space = Discrete(2) if done is None else done
        self.length, self.count, self.given = length, 0, None

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} of {type(action)}"
        self.given, self.count = action, self.count + 1
        return self.observation_space.sample(), 1.0, self.count >= self.length, False, {}


class Countdown(gymnasium.Env):
    """Counts 0, 1, 2 and ends; in count k the actions k and k + 1 of 4 are allowed, and no other.

    Its info has a number that is always there, a flag, one only at the end, and words.
    """

    observation_space = Discrete(4)
    action_space = Discrete(4)

    def __init__(self, form: str = "array", length: int = 3) -> None:
        self.count, self.form, self.length = 0, form, length

    def _info(self):
        allowed = np.zeros(4, dtype=np.int8)
        allowed[self.count : self.count + 2] = 1
        masks = {
            "array": {"action_mask": allowed},
            "empty": {"action_mask": np.zeros(4, dtype=np.int8)},
            "short": {"action_mask": np.ones(3, dtype=np.int8)},
            "sometimes": {} if self.count == 1 else {"action_mask": allowed},
            "late": {} if self.count == 0 else {"action_mask": allowed},
            "never": {},
        }
        info = {"count": self.count, "odd": self.count % 2 == 1, "words": "none", "pair": [1, 2]}
        if self.count == self.length:
            info["last"] = 0.5
            info["episode"] = {"r": 2.0 * self.count, "t": 123.4}
        return {**info, **masks[self.form]}

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.count = 0
        return self.count, self._info()

    def step(self, action):
        if self.form == "array":
            assert action in (self.count, self.count + 1), f"action {action} in {self.count}"
        self.count += 1
        return self.count, 1.0, self.count == self.length, False, self._info()


class MaskedBandit(gymnasium.Env):
    """In state s the arms s, s + 1 and s + 2 of 6 are allowed; s + 1 pays 1, the others 0.

    A forbidden arm is an error. Without the mask its arms would be tried in every state.
    """

    observation_space = Discrete(4)
    action_space = Discrete(6)

    def _shown(self):
        self.state = int(self.np_random.integers(4))
        allowed = np.zeros(6, dtype=np.int8)
        allowed[self.state : self.state + 3] = 1
        return self.state, {"action_mask": allowed}

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.count = 0
        return self._shown()

    def step(self, action):
        assert self.state <= action <= self.state + 2, f"arm {action} in state {self.state}"
        reward, self.count = float(action == self.state + 1), self.count + 1
        observation, info = self._shown()
        return observation, reward, self.count == 8, False, info


class TwoChoices(gymnasium.Env):
    """Half a point for naming each of two things that are seen; of the second, one is forbidden.

    The mask is a tuple, as `MultiDiscrete.sample` takes it.
    """

    observation_space = Dict({"first": Discrete(3), "second": MultiBinary(1)})
    action_space = MultiDiscrete([3, 3])

    def _shown(self):
        self.state = int(self.np_random.integers(3)), int(self.np_random.integers(2))
        seen = {"first": self.state[0], "second": np.array([self.state[1]], dtype=np.int8)}
        mask = np.ones(3, dtype=np.int8), np.array([1, 1, 0], dtype=np.int8)
        return seen, {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.count = 0
        return self._shown()

    def step(self, action):
        assert action[1] != 2
        reward = 0.5 * (action[0] == self.state[0]) + 0.5 * (action[1] == self.state[1])
        self.count += 1
        observation, info = self._shown()
        return observation, float(reward), self.count == 8, False, info


class Quadrant(gymnasium.Env):
    """A point for naming the quadrant of a noisy 8 x 8 image that is lit."""

    observation_space = Box(0, 255, (8, 8, 1), np.uint8)
    action_space = Discrete(4)

    def _shown(self):
        self.lit = int(self.np_random.integers(4))
        image = self.np_random.integers(0, 100, (8, 8, 1))
        row, column = divmod(self.lit, 2)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 100
        return image.astype(np.uint8), {}

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.count = 0
        return self._shown()

    def step(self, action):
        reward, self.count = float(action == self.lit), self.count + 1
        observation, info = self._shown()
        return observation, reward, self.count == 8, False, info


class Breaking(Echo):
    """Fails in its third step, but not where it is only looked through, with the seed 0."""

    def step(self, action):
        if self.count == 2 and self.np_random_seed != 0:
            raise ArithmeticError("broken on purpose")
        return super().step(action)


NESTED = Dict(
    {
        "camera": Box(0, 255, (9, 8, 3), np.uint8),
        "position": Box(-1.0, 1.0, (2, 2)),
        "speed": Box(-np.inf, np.inf, (1,)),
        "gear": Discrete(3, start=-1),
        "rest": Tuple((MultiDiscrete([2, 3]), MultiBinary(2), Dict({"deep": Box(0.0, 1.0, ())}))),
    }
)


def register() -> None:
    for kind in (Echo, Countdown, MaskedBandit, TwoChoices, Quadrant, Breaking):
        for name, options in _variants(kind):
            gymnasium.register(
                f"{FOLDER}{name}-v0", f"gymnasium_lab:{kind.__name__}", kwargs=options
            )


def _variants(kind):
    yield kind.__name__, {}
    if kind is Countdown:
        for form in ("empty", "short", "sometimes", "late", "never"):
            yield f"Countdown{form.title()}", {"form": form}
    if kind is Echo:
        yield "Nested", {"seen": NESTED}
        yield "MultiBinaryActions", {"done": MultiBinary((2, 2))}
        yield "Started", {"done": Discrete(3, start=5)}
        yield "Table", {"done": MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -2]])}
        yield "Plane", {"done": Box(np.float32([[-1, 0], [2, -3]]), np.float32([[1, 5], [3, 3]]))}
        yield "Unbounded", {"done": Box(-1.0, np.inf, (2,))}
        yield "WholeNumbers", {"done": Box(0, 3, (2,), np.int64)}
        yield "Pairs", {"done": Tuple((Discrete(2), Discrete(2)))}
        yield "Words", {"seen": gymnasium.spaces.Text(3)}
        yield "Wide", {"seen": Box(0, 255, (160, 210, 3), np.uint8)}


register()


class Unfit(gymnasium.Env):
    """Shows three numbers where its space says two, from some step on."""

    observation_space = Box(0.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, good=0):
        self.good, self.shown = good, 0

    def reset(self, *, seed=None, options=None):  # noqa: ARG002 - as Gymnasium has it
        super().reset(seed=seed)
        self.shown = 0
        return self._seen(), {}

    def step(self, action):  # noqa: ARG002
        return self._seen(), 0.0, False, False, {}

    def _seen(self):
        self.shown += 1
        return np.zeros(2 if self.shown <= self.good else 3, np.float32)
