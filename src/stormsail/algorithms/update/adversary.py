"""Attacks on observations: PGD, SGLD and FGSM, and which columns they forge.

An attack searches the ball around what was observed for the perturbation that raises an objective
most. In a minibatch a sequence is attacked as a whole from its clean memory, as the gradient goes
through the memory: a forged row may mislead a later decision. In a rollout each decision is
attacked by itself, from the memory that the agent has after everything that it was shown.
"""

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stormsail.algorithms.config import AdversaryConfig
from stormsail.core.errors import ConfigError
from stormsail.core.generators import Generators
from stormsail.core.task import Task, forgeable_names, observation_layout
from stormsail.functional import perturbation
from stormsail.modules.agent import Agent
from stormsail.modules.network import Network
from stormsail.modules.scale import CLIP

_INF = math.inf

Objective = Callable[[Tensor], Tensor]
"""What an attack raises: observations [L, n, F] in, one number for each row [L, n] out."""


class Adversary(NamedTuple):
    """What an adversary has besides its settings."""

    columns: Tensor
    """Indices of the columns that it forges, int64 [C]."""
    generator: torch.Generator
    """Of its draws."""
    low: Tensor | None = None
    """Below which no perturbation takes a column, [F]; None bounds nothing."""
    high: Tensor | None = None
    """Above which none does, [F]."""


def build_adversary(
    task: Task[Any],
    config: AdversaryConfig,
    generators: Generators,
    *,
    normalised: Tensor | None = None,
) -> Adversary | None:
    """Return the adversary of a run; None without one.

    Args:
        task: of the run.
        config: of its adversary.
        generators: of the run.
        normalised: columns that the agent normalises, bool [N], the first of all F: no observation
            is beyond the normaliser's clip there, so no forgery may be. None normalises nothing.

    Raises:
        ConfigError: if no column fits `adversary.features` or an entry of `adversary.bounds`, or
            the task has none to forge.
    """
    if not config.acts:
        return None
    chosen = forged_columns(task, config.features)
    low, high = _bounds(task, config, chosen, normalised)
    columns = torch.tensor(chosen, device=task.device)
    return Adversary(columns, generators.stream("adversary"), low, high)


def _bounds(
    task: Task[Any], config: AdversaryConfig, chosen: list[int], normalised: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the narrowest of all bounds of each column, [F]; infinite where there are none."""
    names = _column_names(task)
    low, high = (torch.full((len(names),), end, device=task.device) for end in (-_INF, _INF))
    if normalised is not None:
        clipped = normalised.nonzero()[:, 0].to(low.device)
        low, high = low.index_fill(0, clipped, -CLIP), high.index_fill(0, clipped, CLIP)
    places = {pattern: _fitting(pattern, names, chosen) for pattern in config.bounds}
    for pattern, (least, most) in config.bounds.items():
        low[places[pattern]] = low[places[pattern]].clamp(min=least)
        high[places[pattern]] = high[places[pattern]].clamp(max=most)
    idle = [pattern for pattern, fitting in places.items() if not fitting]
    if idle:
        raise ConfigError(
            "config-inconsistent",
            wrong="every entry of `adversary.bounds` must fit columns that are forged: "
            + ", ".join(f"`{names[place]}`" for place in chosen),
            found=", ".join(f"`{pattern}`" for pattern in idle),
            remedy="Name some of them; other columns stay as they are anyway.",
        )
    return (
        low if config.clip_min is None else low.clamp(min=config.clip_min),
        high if config.clip_max is None else high.clamp(max=config.clip_max),
    )


def _fitting(pattern: str, names: list[str], chosen: list[int]) -> list[int]:
    """Return the forged columns that a name or pattern fits."""
    return [
        place for place in chosen if names[place] == pattern or fnmatchcase(names[place], pattern)
    ]


def forged_columns(task: Task[Any], patterns: tuple[str, ...] | None) -> list[int]:
    """Return the indices of the columns that an adversary may forge, in order.

    Args:
        task: says which columns come from outside.
        patterns: names or patterns of some of those; None takes all.

    Raises:
        ConfigError: if one of the patterns fits none of them, or there are none.
    """
    allowed = forgeable_names(task)
    wanted = allowed if patterns is None else patterns
    fitting = {
        pattern: [name for name in allowed if name == pattern or fnmatchcase(name, pattern)]
        for pattern in wanted
    }
    idle = [pattern for pattern, names in fitting.items() if not names]
    if idle or not fitting:
        raise ConfigError(
            "config-inconsistent",
            wrong="every entry of `adversary.features` must fit columns that come from outside: "
            + (", ".join(f"`{name}`" for name in allowed) or "this task has none"),
            found=", ".join(f"`{pattern}`" for pattern in idle) or "no column",
            remedy="Name some of them, or leave the setting out for all; the account, the clock, "
            "one-hots and flags are never forged.",
        )
    forged = {name for names in fitting.values() for name in names}
    return [place for place, name in enumerate(_column_names(task)) if name in forged]


def _column_names(task: Task[Any]) -> list[str]:
    """Return the name of every column; the pixels of an image have that of the image."""
    layout = observation_layout(task)
    pixels = [image.name for image in layout.images for _ in range(image.size)]
    return [*layout.names, *pixels]


def attacked_count(config: AdversaryConfig, begin: int, end: int) -> int:
    r"""Return how many of the sequences from place `begin` up to `end` of an epoch are attacked.

    :math:`\lfloor q e + 1/2 \rfloor - \lfloor q b + 1/2 \rfloor` with the share q in `mixed_batch`:
    however an epoch is cut into batches, the counts add up to the rounded share of all of them, and
    they are numbers of the host, so that shapes are known. All in `kl_reg`.
    """
    if config.mode == "kl_reg":
        return end - begin
    share = config.adversarial_ratio
    return math.floor(share * end + 0.5) - math.floor(share * begin + 0.5)


def attacked_observations(
    observation: Tensor,
    objective: Objective,
    config: AdversaryConfig,
    adversary: Adversary,
    *,
    epsilon: float,
    weight: Tensor,
) -> Tensor:
    r"""Return the observations of the strongest perturbation that an attack reaches, [L, n, F].

    .. math::
        \max_\delta \sum_{t,i} w_{ti}\, J_{ti}(s + \delta), \qquad \|\delta_{ti}\| \le \epsilon

    over all rows at once, where J of a row may depend on earlier rows through the memory. Inner
    maximisation of Zhang et al. 2020, arXiv:2003.08938, Section 3.2, and of Madry et al. 2018,
    arXiv:1706.06083, Section 2.1. `pgd`: K steps of `perturbation.pgd_step`. `sgld`: the same with
    `perturbation.langevin_gradient`; deviation: of the gradient of the sum, not of the mean, so
    that the noise counts alike in batches of any size. `fgsm`: the whole radius along the gradient
    at the start.

    Gradients are taken with respect to the perturbation alone: no parameter gets any, and the
    result carries none. Columns other than the adversary's and rows of weight 0 stay as they are.

    Args:
        observation: clean, normalised.
        objective: to be raised; differentiable.
        config: method, steps, norm and start.
        adversary: which columns, within which bounds, and the source of draws.
        epsilon: radius of the ball.
        weight: of each row, [L, n].
    """
    clean = observation.detach()
    mask = torch.zeros(clean.shape[-1], device=clean.device)
    mask = mask.index_fill(0, adversary.columns, 1.0) > 0.0
    allowed = mask & (weight > 0.0)[..., None]
    norm, method = config.norm_type, config.attack_method

    def forged(delta: Tensor) -> Tensor:
        return perturbation.apply_mask(clean, delta, mask, low=adversary.low, high=adversary.high)

    def slope(delta: Tensor) -> Tensor:
        with torch.enable_grad():
            delta = delta.detach().requires_grad_()
            rows = objective(forged(delta))
            total = torch.where(weight > 0.0, rows * weight, 0.0).sum()
            (gradient,) = torch.autograd.grad(total, delta)
        return torch.where(allowed, gradient, 0.0)

    delta = torch.where(allowed, _start(clean, config, adversary, epsilon), 0.0)
    if method == "fgsm":
        step = perturbation.pgd_step(
            torch.zeros_like(delta), slope(delta), step=epsilon, epsilon=epsilon, norm=norm
        )
        return forged(step)
    length = epsilon / config.attack_steps if config.attack_lr is None else config.attack_lr
    for taken in range(config.attack_steps):
        gradient = slope(delta)
        if method == "sgld":
            noise = torch.empty_like(clean).normal_(generator=adversary.generator)
            noise = torch.where(allowed, noise, 0.0)
            gradient = perturbation.langevin_gradient(gradient, noise, step=length, taken=taken)
        delta = perturbation.pgd_step(delta, gradient, step=length, epsilon=epsilon, norm=norm)
    return forged(delta)


def _start(clean: Tensor, config: AdversaryConfig, adversary: Adversary, epsilon: float) -> Tensor:
    """Return where the search begins: 0, or a uniform point of the ball in the forged columns."""
    start = torch.zeros_like(clean)
    if not config.random_init:
        return start
    rows, source = clean.shape[:-1], adversary.generator
    normal = clean.new_empty(*rows, len(adversary.columns)).normal_(generator=source)
    uniform = clean.new_empty(rows).uniform_(generator=source)
    drawn = perturbation.random_start(normal, uniform, epsilon=epsilon, norm=config.norm_type)
    return start.index_copy(-1, adversary.columns, drawn.to(start.dtype))


class Forger(NamedTuple):
    """Forges what the agent observes in a rollout, in some of the environments."""

    adversary: Adversary
    config: AdversaryConfig
    epsilon: float
    """Radius, above 0."""
    attacked: int
    """Environments that are attacked: the last ones, always the same, so that an episode is forged
    from its first step to its last or not at all."""

    def forge(self, agent: Agent, seen: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Return what the agent is shown in place of normalised observations [B, F].

        What raises KL(pi(.|s) || pi(.|s + delta)) most, both with the memory that there is: the
        maximal action difference of Zhang et al. 2020, arXiv:2003.08938, Appendix D, by
        `attacked_observations`, each decision by itself. Every row is forged, the last one of an
        episode, too: its value is that of a state in which the agent goes on being misled.

        Args:
            agent: is misled.
            seen: all environments.
            memory: before this step, [B, L, P, H].
            mask: actions that are allowed, bool [B, D], or None.
        """
        network, clean = agent.network, len(seen) - self.attacked
        true, before = seen[None, clean:], memory[clean:]
        allowed = None if mask is None or mask.shape[-1] == 0 else mask[None, clean:]
        reset = torch.zeros(true.shape[:2], dtype=torch.bool, device=seen.device)
        features, _ = network.features(true, before, reset)
        actor = network.actor(features, network.account(true))
        fixed = network.head.masked(actor, allowed)
        shown = attacked_observations(
            true,
            policy_divergence(network, fixed, before, reset, allowed),
            self.config,
            self.adversary,
            epsilon=self.epsilon,
            weight=torch.ones_like(true[..., 0]),
        )
        return torch.cat((seen[:clean], shown[0]))

    def size(self, delta: Tensor) -> Tensor:
        """Return the size of each perturbation in the norm of the ball."""
        return perturbation.perturbation_size(delta, norm=self.config.norm_type)


def forger_of(
    adversary: Adversary | None, config: AdversaryConfig, *, epsilon: float, envs: int
) -> Forger | None:
    """Return what forges the coming rollout; None where nothing does.

    Args:
        adversary: of the run.
        config: of it.
        epsilon: radius of the update.
        envs: B, of which the rounded share is attacked.
    """
    count = attacked_count(config, 0, envs)
    if adversary is None or not config.attacks_rollouts or epsilon == 0.0 or count == 0:
        return None
    return Forger(adversary, config, epsilon, count)


def policy_divergence(
    network: Network, clean: Tensor, memory: Tensor, reset: Tensor, mask: Tensor | None
) -> Objective:
    """Return the objective KL(pi(.|s) || pi(.|s')) between the policies on s and on what is forged.

    Zhang et al. 2020, arXiv:2003.08938, Section 3.2. The first side is a constant.

    Args:
        network: its actor decides.
        clean: parameters of the policy on the clean observations, [L, n, D].
        memory: before the first row, [n, L, P, H]; clean.
        reset: rows that start from the initial state, bool [L, n].
        mask: allowed actions, or None.
    """
    fixed = clean.detach()

    def objective(observation: Tensor) -> Tensor:
        features, _ = network.features(observation, memory, reset)
        actor = network.actor(features, network.account(observation))
        return network.head.kl(fixed, network.head.masked(actor, mask))

    return objective
