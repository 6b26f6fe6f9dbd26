"""A user's own Gymnasium environment, an object or a factory, under a name in the registry.

A run names its task by text, so that its folder says what it was trained on. The name is made from
the class, its spaces and the arguments of its registration: the same script finds its own run
again, and another process can only resume it after it has registered the environment itself.
"""

import copy
import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import gymnasium

from stormsail.core.errors import ArgumentError

Env: TypeAlias = gymnasium.Env[Any, Any]
Factory: TypeAlias = Callable[[], Env]

NAMESPACE = "own"
"""Namespace of the names in Gymnasium's registry."""


def register_own(env: Env | Factory) -> str:
    """Register an environment; return its id, such as `own/Corridor-1f0c9a2e-v0`.

    Args:
        env: an object, of which copies are made and which itself is never stepped; or a function
            without arguments that returns a new one.

    Raises:
        ArgumentError: if it is neither, or cannot be copied.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise _refusal("a vector environment", "Pass a single one; the run makes its own copies.")
    factory: Factory
    if isinstance(env, gymnasium.Env):
        sample, factory = env, partial(_copied, env)
        _copied(env).close()
    else:
        factory = env
        sample = _made(env)
    name = _name(sample)
    if sample is not env:
        sample.close()
    gymnasium.registry.pop(name, None)  # the newest of one name counts, without a warning
    gymnasium.register(name, entry_point=lambda **_: factory(), disable_env_checker=True)
    return name


def _made(factory: object) -> Env:
    if not callable(factory):
        found = f"a value of the type {type(factory).__name__}"
        raise _refusal(found, "Pass `lambda: MyEnv(...)`, or the object itself.")
    made = factory()
    if isinstance(made, gymnasium.vector.VectorEnv) or not isinstance(made, gymnasium.Env):
        found = f"a function that returned a value of the type {type(made).__name__}"
        raise _refusal(found, "Return a new environment from it.")
    return made


def _copied(env: Env) -> Env:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        found = f"an object that cannot be copied, {type(error).__name__}: {error}"
        raise _refusal(found, "Pass its id, or a factory such as `lambda: MyEnv(...)`.") from error


def _name(env: Env) -> str:
    kind = type(env.unwrapped)
    given = {} if env.spec is None else env.spec.kwargs
    parts = (kind.__module__, kind.__qualname__, env.observation_space, env.action_space, given)
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]
    return f"{NAMESPACE}/{re.sub(r'[^A-Za-z0-9_]', '', kind.__name__)}-{digest}-v0"


def _refusal(found: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        "environment-form",
        wrong="`env` must be the id of a Gymnasium environment, an environment that can be copied, "
        "or a function that returns one",
        found=found,
        remedy=remedy,
    )
