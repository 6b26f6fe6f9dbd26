"""One update of the learner, replayed step by step in float64 from the order of operations.

Nothing here comes from `stormsail`; weights and scripts come in as arrays. T rows, B environments,
C critics, W numbers of one critic.
"""

import math

import numpy as np

from oracles import categorical, policy, quantile, returns, twin, value_clip
from oracles.recurrence import sigmoid


def rows_of(ended, weight, ignored, reset):
    """Follow the next-step rule: return weight and reset of every row, and the two carried flags.

    Row t is ignored if row t - 1 ended an episode, and begins with a fresh memory if row t - 1 was
    ignored. Both flags cross the boundary between two rollouts.
    """
    T, B = ended.shape
    used, fresh = np.zeros((T, B)), np.zeros((T, B), dtype=bool)
    ignored, reset = list(ignored), list(reset)
    for t in range(T):
        for b in range(B):
            used[t, b] = 0.0 if ignored[b] else weight[t, b]
            fresh[t, b] = reset[b]
            reset[b], ignored[b] = ignored[b], bool(ended[t, b])
    return used, fresh, np.array(ignored), np.array(reset)


def episodes(reward, ended, ignored):
    """Return what each episode had earned before every row, and its steps with that row."""
    T, B = reward.shape
    earned, length = np.zeros((T, B)), np.zeros((T, B), dtype=int)
    for b in range(B):
        total, steps, skip = 0.0, 0, bool(ignored[b])
        for t in range(T):
            earned[t, b] = total
            if not skip:
                steps += 1
                total += reward[t, b]
            length[t, b] = steps
            skip = bool(ended[t, b])
            if skip:
                total, steps = 0.0, 0
    return earned, length


def dense(x, weight, bias):
    return np.array([bias[o] + np.dot(weight[o], x) for o in range(len(bias))])


def lstm_step(x, hidden, cell, weights, prefix):
    """One step of one layer; gates in the order i, f, g, o."""
    z = dense(x, weights[f"{prefix}.input_weights.0"], weights[f"{prefix}.input_biases.0"])
    z = z + dense(
        hidden, weights[f"{prefix}.hidden_weights.0"], weights[f"{prefix}.hidden_biases.0"]
    )
    H = len(hidden)
    new_cell, new_hidden = np.zeros(H), np.zeros(H)
    for k in range(H):
        i, f = sigmoid(z[k]), sigmoid(z[H + k])
        g, o = math.tanh(z[2 * H + k]), sigmoid(z[3 * H + k])
        new_cell[k] = f * cell[k] + i * g
        new_hidden[k] = o * math.tanh(new_cell[k])
    return new_hidden, new_cell


def speak(observation, hidden, cell, weights, critics):
    """Return what a network with one layer everywhere says of one observation, and its memory."""
    x = np.tanh(
        dense(
            observation,
            weights["trunk.encoder.layers.0.weight"],
            weights["trunk.encoder.layers.0.bias"],
        )
    )
    hidden, cell = lstm_step(x, hidden, cell, weights, "trunk.memory")
    body = np.tanh(
        dense(hidden, weights["actor_body.layers.0.weight"], weights["actor_body.layers.0.bias"])
    )
    actor = dense(body, weights["actor_last.weight"], weights["actor_last.bias"])
    heads = []
    for c in range(critics):
        name = f"critic.heads.{c}"
        inner = np.tanh(
            dense(hidden, weights[f"{name}.body.layers.0.weight"],
                  weights[f"{name}.body.layers.0.bias"])
        )  # fmt: skip
        heads.append(dense(inner, weights[f"{name}.last.weight"], weights[f"{name}.last.bias"]))
    return actor, np.array(heads), hidden, cell


def walk(observation, memory, reset, weights, critics):
    """Return actor [T, B, D] and critics [T, B, C, W] of a walk, and the memory after it.

    `memory` is (hidden, cell), each [B, H]; a reset row begins with zeros.
    """
    T, B, _ = observation.shape
    hidden, cell = memory[0].copy(), memory[1].copy()
    actors, heads = [], []
    for t in range(T):
        for b in range(B):
            if reset[t, b]:
                hidden[b], cell[b] = 0.0, 0.0
            actor, head, hidden[b], cell[b] = speak(
                observation[t, b], hidden[b], cell[b], weights, critics
            )
            actors.append(actor)
            heads.append(head)
    shape = (T, B)
    return (
        np.array(actors).reshape(*shape, -1),
        np.array(heads).reshape(*shape, critics, -1),
        (hidden, cell),
    )


def value(predicted, kind, atoms, mode="min"):
    """The one value of all critics of one row, normalised."""
    if kind == "categorical":
        means = [
            categorical.distribution_mean(categorical.softmax(row), atoms) for row in predicted
        ]
    else:
        means = [sum(row) / len(row) for row in predicted]
    return twin.twin_value(means, mode)


def distribution(predicted, kind, atoms, mode="argmin"):
    """The one distribution of all critics of one row: normalised quantiles, or probabilities."""
    if kind == "categorical":
        return twin.twin_distribution([categorical.softmax(row) for row in predicted], atoms, mode)
    return twin.twin_quantiles(predicted, mode)


def values(predicted, kind, atoms, mean, std):
    """Decoded values of every row, with the statistics that the heads were trained in."""
    T, B = predicted.shape[:2]
    out = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            out[t, b] = std * value(predicted[t, b], kind, atoms) + mean
    return out


def target(rollout, kind, name, *, gamma, steps, lam, mean, std, atoms, scalar_return):
    """Critic targets in reward units; probabilities for a categorical critic.

    `rollout` has reward, terminated, truncated [T, B] and reached [T, B, C, W].
    """
    reward, terminated, truncated = rollout["reward"], rollout["terminated"], rollout["truncated"]
    T, B = reward.shape
    raw_atoms = None if atoms is None else std * atoms + mean
    if name == "lambda_return":
        if kind == "categorical":
            flat = [categorical.project_dirac(y, raw_atoms) for y in scalar_return.flatten()]
            return np.array(flat).reshape(T, B, -1)
        return scalar_return[..., None]
    following = rollout["next_predicted"]
    distributions = np.array(
        [[distribution(following[t, b], kind, atoms) for b in range(B)] for t in range(T)]
    )
    if kind == "categorical":
        return returns.categorical_nstep_targets(
            reward, distributions, terminated, truncated, raw_atoms, gamma, steps
        )
    decoded = std * distributions + mean
    if name == "lambda_mixture":
        return returns.quantile_lambda_targets(reward, decoded, terminated, truncated, gamma, lam)
    return returns.quantile_nstep_targets(reward, decoded, terminated, truncated, gamma, steps)


def critic_loss(predicted, wanted, kind, kappa):
    """Loss of one critic for one row."""
    if kind == "quantile":
        tau = quantile.midpoints(len(predicted))
        return quantile.huber_loss(predicted, wanted, tau, kappa)
    if kind == "categorical":
        return categorical.cross_entropy(predicted, wanted) / math.log(len(predicted))
    return 0.5 * (predicted[0] - wanted[0]) ** 2


def held(predicted, old, kind, atoms, *, epsilon, mode, factor, limit, mean, std):
    """What one critic may have said of one row: near its own old words, within the limit."""
    if kind == "categorical":
        new, before = categorical.softmax(predicted), categorical.softmax(old)
        probs = value_clip.clip_distribution(new, before, atoms, epsilon, mode, factor)
        return np.log(np.maximum(probs, np.finfo(np.float32).tiny))
    mode = "mean_only" if kind == "scalar" else mode
    near = value_clip.clip_quantiles(predicted, old, epsilon, mode, factor)
    if limit is None:
        return near
    return np.array([value_clip.limit_encoded(x, limit, mean, std) for x in near])


def value_loss(predicted, old, wanted, kind, kappa, atoms, clip):
    """Per critic the worse of free and held, then the mean of the critics, of one row."""
    plain = [critic_loss(row, wanted, kind, kappa) for row in predicted]
    if clip is None:
        return sum(plain) / len(plain)
    near = [held(row, before, kind, atoms, **clip) for row, before in zip(predicted, old,
                                                                          strict=True)]  # fmt: skip
    return twin.twin_loss(plain, [critic_loss(row, wanted, kind, kappa) for row in near])


def log_softmax(logits):
    peak = max(logits)
    total = peak + math.log(math.fsum(math.exp(x - peak) for x in logits))
    return np.array([x - total for x in logits])


def batch_loss(batch, now, *, kind, kappa, atoms, clip, bc):
    """Mean loss of a batch of categorical actions over its weight, term by term.

    `batch` holds arrays over flat rows: actor logits, old logits, action, old_log_prob, advantage,
    weight, predicted, old, target. `now` holds clip_range, vf, ent, kl and bc.
    """
    total, mass = 0.0, 0.0
    for i, weight in enumerate(batch["weight"]):
        if weight == 0.0:
            continue
        logs = log_softmax(batch["actor"][i])
        old_logs = log_softmax(batch["old_actor"][i])
        new, old = logs[batch["action"][i]], batch["old_log_prob"][i]
        one = np.array([new]), np.array([old]), np.array([batch["advantage"][i]])
        loss = float(policy.clipped_surrogate(*one, now["clip_range"])[0])
        entropy = -math.fsum(math.exp(x) * x for x in logs)
        loss -= now["ent"] * entropy
        kl = math.fsum(math.exp(x) * (x - y) for x, y in zip(old_logs, logs, strict=True))
        loss += now["kl"] * kl
        if now["bc"]:
            loss += now["bc"] * float(policy.awr_loss(one[0], one[2], *bc)[0])
        loss += now["vf"] * value_loss(
            batch["predicted"][i], batch["old"][i], batch["target"][i], kind, kappa, atoms, clip
        )
        total += weight * loss
        mass += weight
    return total / mass
