"""PopArt: change the critics' return scale between rollout and epochs, keep their predictions."""

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.update.critic_targets import atom_weights
from stormsail.algorithms.update.return_statistics import (
    Outcomes,
    ReturnStatistics,
    Scale,
    deviations_per_unit,
    least_std,
)
from stormsail.algorithms.update.rollout import Rollout
from stormsail.functional import categorical, return_scale, returns
from stormsail.functional.statistics import moments, variance
from stormsail.modules.agent import Agent
from stormsail.modules.config import CriticConfig

_PADDING = 0.05
"""Padding of the support on either side, as a share of the returns' range."""

_MAX_STEP = 0.5
"""Largest move of a bound in one update, as a share of the support's span."""

_ROUNDING = 1e-6
"""Deviations below this share of the mean are rounding."""

_ENOUGH = 1_000_000
"""Outcomes that suffice for a quantile."""

_LOW, _HIGH = 0.02, 0.98
"""The bulk of the returns lies between these quantiles."""


@torch.no_grad()
def initial_scale(agent: Agent, rollout: Rollout, config: TrainConfig) -> None:
    """Set the return scale of untrained critics from the rewards of their first rollout.

    Mean and deviation of the discounted rewards from each row to the end of its episode or of the
    rollout. The heads are not rescaled: their output is noise of about one deviation, and would be
    noise of about one reward, a hundred times the returns of a market, if it were preserved through
    every change of scale. It would then be bootstrapped into targets and statistics for dozens of
    updates.

    Rewards without any spread leave the scale as it is; a spread below `least_std` counts as that.
    """
    mode = config.returns.normalize_returns
    if mode not in ("popart", "scale"):
        return
    nothing = torch.zeros_like(rollout.reward)
    flags = (rollout.terminated, rollout.truncated)
    sums = returns.gae(
        rollout.reward, nothing, nothing, *flags, gamma=config.ppo.gamma, lam=1.0
    ).flatten()
    seen = moments(sums[:, None].double(), weight=rollout.weight.flatten().double())
    std = float(variance(seen).sqrt())
    if not std > max(config.returns.std_floor, abs(float(seen.mean)) * _ROUNDING):
        return
    scale = agent.return_scale
    scale.mean.fill_(0.0 if mode == "scale" else float(seen.mean))
    scale.std.fill_(max(std, least_std(config.returns)) * deviations_per_unit(config.returns))


@torch.no_grad()
def popart_rescale(
    agent: Agent,
    statistics: ReturnStatistics,
    outcomes: Tensor,
    weight: Tensor,
    predicted: Tensor,
    config: TrainConfig,
    optimizer: torch.optim.Optimizer,
    known: Outcomes | None = None,
    sound: Tensor | None = None,
) -> Tensor:
    """Update the return statistics; return the old predictions on the new scale.

    With `popart` heads or atoms are rescaled so that every decoded prediction stays what it was.
    With `scale` returns are divided by `ret_clip` times the deviation and not centred. With
    `frozen_lag` the scale changes and nothing else does, as in an earlier system, for comparison.
    Nothing waits for the device.

    Args:
        agent: its scale and its critics change.
        statistics: of returns; change, too.
        outcomes: sampled returns in reward units, [n, M].
        weight: of each row, [n].
        predicted: by the critics during the rollout, [T, B, C, W].
        config: of the run.
        optimizer: its state follows the critics.
        known: moments of the outcomes, if they are there already.
        sound: whether the update counts; where not, not a bit changes. None counts it.
    """
    mode = config.returns.normalize_returns
    if mode == "off":
        return predicted
    scale = agent.return_scale
    unit = deviations_per_unit(config.returns)
    old_mean, old_std = scale.mean.clone(), scale.std.clone()
    now = Scale(old_mean, old_std / unit)
    mass = atom_weights(agent, outcomes)
    new = statistics.step(outcomes, weight, now, atom_weight=mass, known=known, sound=sound)
    new = Scale(0.0 if mode == "scale" else new.mean, new.std * unit)
    moves = (old_mean != new.mean) | (old_std != new.std)  # otherwise there is nothing to round
    if sound is not None:
        moves = moves & sound
    scale.mean.copy_(torch.where(moves, new.mean, old_mean))
    scale.std.copy_(torch.where(moves, new.std, old_std))
    if mode == "frozen_lag":
        return predicted
    moved = (old_mean, old_std, scale.mean, scale.std)
    agent.network.critic.rescale(*moved, where=moves)
    _rescale_moments(agent, optimizer, old_std, scale.std)
    if agent.spec.critic.kind == "categorical":
        return predicted
    return torch.where(moves, return_scale.re_express(predicted, *moved), predicted)


def _rescale_moments(
    agent: Agent, optimizer: torch.optim.Optimizer, std: Tensor, new_std: Tensor
) -> None:
    """Rescale the optimizer's moments and utilities of the last layers to the new scale.

    A squared loss has gradients in the unit of its prediction, so its moments are rescaled. The
    gradient of a pinball loss has no unit: there only the utility of UPGD, which is weight times
    gradient, is. For a squared loss both factors of that product are.
    """
    kind = agent.spec.critic.kind
    if kind == "categorical" or agent.spec.critic.monotone_quantiles:
        return
    power = 2 if kind == "scalar" else 1
    for last in agent.network.critic.last_layers():
        for parameter in (last.weight, last.bias):
            state = optimizer.state.get(parameter, {})
            if kind == "scalar" and "exp_avg" in state:
                first, second = return_scale.popart_rescale_moments(
                    state["exp_avg"], state["exp_avg_sq"], std=std, new_std=new_std, loss="squared"
                )
                state["exp_avg"].copy_(first)
                state["exp_avg_sq"].copy_(second)
        utility = optimizer.state.get(last.weight, {}).get("avg_utility")
        if utility is not None:
            utility.copy_(
                return_scale.popart_rescale_utility(utility, std=std**power, new_std=new_std**power)
            )


def rescaled_tensors(agent: Agent, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return all that `popart_rescale` changes, beside the statistics."""
    critic = agent.network.critic
    layers = [part for last in critic.last_layers() for part in (last.weight, last.bias)]
    states = [value for part in layers for value in optimizer.state.get(part, {}).values()]
    kept = [value for value in states if isinstance(value, Tensor)]
    return [*agent.return_scale.buffers(), *critic.buffers(), *layers, *kept]


@torch.no_grad()
def move_support(
    agent: Agent,
    outcomes: Tensor,
    weight: Tensor,
    target: Tensor,
    predicted: Tensor,
    *,
    warming: bool = False,
) -> tuple[Tensor, Tensor]:
    """Move the support of a categorical critic with the returns.

    The bounds move towards the range of the normalised outcomes, with padding, by a moving average
    and at most half a span in one update. The range holds the extreme ones and reaches at least
    twice as far from the median as the quantiles of the bulk: a tail that is cut off here is risk
    that the critics cannot see. Targets and old distributions are projected onto the new atoms.

    While the return statistics warm up, the support is `v_min` to `v_max` on the current scale. On
    that of the very first update it would stay in reward units for good: far too wide for returns
    of a thousandth, far too narrow for returns of a hundred.

    Args:
        agent: its atoms move.
        outcomes: sampled returns in reward units, [n, M].
        weight: of each row, [n].
        target: probabilities of the atoms, [T, B, K].
        predicted: logits of the old critics, [T, B, C, K].
        warming: whether the return statistics are warming up.

    Returns:
        Targets and logits on the new atoms.
    """
    critic = agent.network.critic
    config = agent.spec.critic
    fixed = config.v_range_ema_alpha == 0.0 and not warming
    if config.kind != "categorical" or fixed:
        return target, predicted
    kept = agent.return_scale.encode(outcomes[weight > 0.0].double()).flatten()
    if len(kept) == 0:
        return target, predicted
    atoms = critic.atoms.clone()
    low, high = (config.v_min, config.v_max) if warming else _bounds(kept, atoms, config)
    critic.atoms.copy_(torch.linspace(low, high, config.num_atoms, dtype=torch.float64))
    support = atoms.expand(target.shape)
    moved = categorical.project_distribution(target, support, critic.atoms)
    probs = categorical.project_distribution(
        predicted.softmax(-1), atoms.expand(predicted.shape), critic.atoms
    )
    return moved, probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _bounds(kept: Tensor, atoms: Tensor, config: CriticConfig) -> tuple[float, float]:
    low, high = float(atoms[0]), float(atoms[-1])
    span = high - low
    some = kept[:: max(len(kept) // _ENOUGH, 1)]
    low_bulk, middle, high_bulk = torch.quantile(some, kept.new_tensor([_LOW, 0.5, _HIGH])).tolist()
    least = min(float(kept.min()), 2.0 * low_bulk - middle)
    most = max(float(kept.max()), 2.0 * high_bulk - middle)
    room = _PADDING * max(most - least, 1e-3 * span)
    alpha, reach = config.v_range_ema_alpha, _MAX_STEP * span
    down = min(max(alpha * (least - room - low), -reach), reach)
    up = min(max(alpha * (most + room - high), -reach), reach)
    return low + down, max(high + up, low + down + 1e-3 * span)
