"""`Simulator.transition` as machine code.

`torch.compile` would look at some hundred attributes before every call, to see whether the code is
still the right one. A simulator never changes, so the operations are recorded once and handed to
the compiler directly; shapes and types are checked by `Simulator.step` anyway.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stormsail.core.errors import ConfigError
from stormsail.core.task import Step
from stormsail.market.simulator.records import Info, State

Transition = Callable[[State, Tensor, Tensor], tuple[State, Step[Info]]]

_STATE, _SHOWN = len(State._fields), len(Step._fields) - 1


def compiled(transition: Transition, example: tuple[State, Tensor, Tensor]) -> Transition:
    """Return the same function, compiled for tensors like the example's.

    Raises:
        ConfigError: if there is no compiler, or it fails.
    """
    import torch._inductor  # takes seconds, which only those who compile should wait
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*tensors: Tensor) -> list[Tensor]:
        action, uniform = tensors[_STATE:]
        state, step = transition(State(*tensors[:_STATE]), action, uniform)
        shown = (step.observation, step.reward, step.terminated, step.truncated)
        return [*state, *shown, *step.info]

    inputs: list[Any] = [*example[0], *example[1:]]
    with torch.no_grad():
        graph = make_fx(flat)(*inputs)
        try:
            run = torch._inductor.compile(graph, inputs)
            run(*inputs)
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                "missing-extra",
                wrong="compiling a simulator needs a working compiler: C++ for a CPU, Triton for a "
                "GPU",
                found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
                remedy="Install one, or do not compile.",
            ) from error

    def call(state: State, action: Tensor, uniform: Tensor) -> tuple[State, Step[Info]]:
        found = run(*state, action, uniform)
        observation, reward, terminated, truncated = found[_STATE : _STATE + _SHOWN]
        info = Info(*found[_STATE + _SHOWN :])
        return State(*found[:_STATE]), Step(observation, reward, terminated, truncated, info)

    return call
