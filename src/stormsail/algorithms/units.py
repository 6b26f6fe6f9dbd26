"""Moving the units of the critics between rollout and epochs, without changing what they say."""

import torch
from torch import Tensor

from stormsail.algorithms.config import TrainConfig
from stormsail.algorithms.return_statistics import ReturnStatistics, Units
from stormsail.functional import categorical, return_scale
from stormsail.modules.agent import Agent
from stormsail.modules.config import CriticConfig

_PADDING = 0.05
"""Room that the support keeps on either side, as a share of the returns' range."""

_MAX_STEP = 0.5
"""Largest move of a bound in one update, as a share of the support's span."""

_LOW, _HIGH = 0.02, 0.98
"""The bulk of the returns lies between these quantiles."""


@torch.no_grad()
def move_units(
    agent: Agent,
    statistics: ReturnStatistics,
    returns: Tensor,
    weight: Tensor,
    predicted: Tensor,
    config: TrainConfig,
    optimizer: torch.optim.Optimizer,
) -> Tensor:
    """Take new returns into the statistics; return the old predictions in the new units.

    With `popart` heads or atoms are rescaled so that every decoded prediction stays what it was.
    With `scale` returns are divided by `ret_clip` times the spread and not centred. With
    `frozen_lag` the units change and nothing else does, as the earlier bot had it, for comparison.
    """
    mode = config.returns.normalize_returns
    if mode == "off":
        return predicted
    scale = agent.return_scale
    gain = config.returns.ret_clip if mode == "scale" else 1.0
    now = Units(float(scale.mean), float(scale.std) / gain)
    new = statistics.step(returns, weight, now)
    new = Units(0.0 if mode == "scale" else new.mean, new.std * gain)
    if new == Units(float(scale.mean), float(scale.std)):  # nothing to round
        return predicted
    old_mean, old_std = scale.mean.clone(), scale.std.clone()
    scale.mean.fill_(new.mean)
    scale.std.fill_(new.std)
    if mode == "frozen_lag":
        return predicted
    moved = (old_mean, old_std, scale.mean, scale.std)
    agent.network.critic.rescale(*moved)
    _rescale_moments(agent, optimizer, old_std, scale.std)
    if agent.spec.critic.kind == "categorical":
        return predicted
    return return_scale.re_express(predicted, *moved)


def _rescale_moments(
    agent: Agent, optimizer: torch.optim.Optimizer, std: Tensor, new_std: Tensor
) -> None:
    """Bring what the optimizer remembers of the last layers into the new units.

    A squared loss has gradients in units of its prediction, so its moments follow. The gradient of
    a pinball loss has no unit: there only the utility of UPGD, which is weight times gradient,
    follows. For a squared loss both factors of that product do.
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


@torch.no_grad()
def move_support(
    agent: Agent,
    returns: Tensor,
    weight: Tensor,
    target: Tensor,
    predicted: Tensor,
    *,
    warming: bool = False,
) -> tuple[Tensor, Tensor]:
    """Let the atoms of a categorical critic follow the returns.

    The bounds move towards the range of the normalised returns: the middle between their extreme
    values and the quantiles that hold the bulk, with padding, by a moving average and at most half
    a span in one update. Targets and old laws are projected onto the new atoms.

    While the return statistics warm up, the support is `v_min` to `v_max` in the units of the day.
    Kept in those of the very first update, it would be measured in rewards for good: far too wide
    for returns of a thousandth, far too narrow for returns of a hundred.

    Args:
        agent: its atoms move.
        returns: in reward units, [n].
        weight: of each, [n].
        target: probabilities of the atoms, [T, B, K].
        predicted: logits of the old critics, [T, B, C, K].
        warming: whether the return statistics still follow every update at once.

    Returns:
        Targets and logits on the new atoms.
    """
    critic = agent.network.critic
    config = agent.spec.critic
    kept = agent.return_scale.encode(returns[weight > 0.0].double())
    fixed = config.v_range_ema_alpha == 0.0 and not warming
    if config.kind != "categorical" or fixed or len(kept) == 0:
        return target, predicted
    atoms = critic.atoms.clone()
    low, high = (config.v_min, config.v_max) if warming else _bounds(kept, atoms, config)
    critic.atoms.copy_(torch.linspace(low, high, config.num_atoms, dtype=torch.float64))
    support = atoms.expand(target.shape)
    moved = categorical.project_law(target, support, critic.atoms)
    law = categorical.project_law(
        predicted.softmax(-1), atoms.expand(predicted.shape), critic.atoms
    )
    return moved, law.clamp(min=torch.finfo(law.dtype).tiny).log()


def _bounds(kept: Tensor, atoms: Tensor, config: CriticConfig) -> tuple[float, float]:
    low, high = float(atoms[0]), float(atoms[-1])
    span = high - low
    quantiles = torch.quantile(kept, kept.new_tensor([_LOW, _HIGH]))
    least = 0.5 * (float(kept.min()) + float(quantiles[0]))
    most = 0.5 * (float(kept.max()) + float(quantiles[1]))
    room = _PADDING * max(most - least, 1e-3 * span)
    alpha, reach = config.v_range_ema_alpha, _MAX_STEP * span
    down = min(max(alpha * (least - room - low), -reach), reach)
    up = min(max(alpha * (most + room - high), -reach), reach)
    return low + down, max(high + up, low + down + 1e-3 * span)
