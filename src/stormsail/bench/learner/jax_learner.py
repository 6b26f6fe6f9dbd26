"""A recurrent PPO with twin quantile critics as one JAX program: a peer of `stormsail bench train`.

Rollout and update are traced into one function, the way fast learners are written in JAX, and the
market is a few lines of arithmetic on the device. It has the sizes of ours and does less: no
scaling of observations, quantile regression on the return alone (N pairs a sample instead of N
squared), no return scale, no risk, no guard, no metrics. So it is a bound to measure by, not a
substitute.

JAX comes from elsewhere and is imported when it is used. Adam is written out: no other library is
needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SYMBOLS, BARS = 64, 20_000
LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)
EPISODE = 500
FEE = 0.001
GAMMA, LAM, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5
MAX_NORM, BETAS, EPSILON = 0.5, (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Shape:
    """Sizes of the program."""

    environments: int
    steps: int
    epochs: int
    minibatches: int
    width: int
    """Of the LSTM."""
    features: int = 32
    """Market columns of an observation; position and equity are added."""
    encoder: int = 64
    head: int = 64
    quantiles: int = 32
    learning_rate: float = 3e-4
    half: bool = False
    """Matrix products in bfloat16; state, losses and weights stay float32."""


def build(shape: Shape, *, seed: int = 0) -> tuple[Callable[[Any], Any], Any]:
    """Return one update, compiled at its first call, and the state that it begins with.

    Raises:
        ImportError: if JAX is not installed.
    """
    import jax

    market = _Market(shape, seed)
    network = _Network(shape)
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    weights = network.init(keys[0])
    zeros = jax.tree.map(jax.numpy.zeros_like, weights)
    memory = jax.numpy.zeros((2, shape.environments, shape.width))
    begin = (weights, (zeros, zeros, 0.0), market.begin(keys[1]), memory, keys[2])
    return jax.jit(_Update(shape, network, market)), begin


class _Network:
    """Encoder, LSTM, actor and two critics."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def init(self, key: Any) -> Any:  # noqa: ANN401 - arrays of JAX, all through this file
        import jax

        shape, inputs = self.shape, self.shape.features + 2
        layers = {
            "encoder": (inputs, shape.encoder),
            "input": (shape.encoder, 4 * shape.width),
            "hidden": (shape.width, 4 * shape.width),
            "actor": (shape.width, shape.head),
            "logits": (shape.head, len(LEVELS)),
        }
        for name in ("first", "second"):
            layers[name] = (shape.width, shape.head)
            layers[f"{name}_quantiles"] = (shape.head, shape.quantiles)
        keys = jax.random.split(key, len(layers))
        return {
            name: (jax.random.normal(own, size) / size[0] ** 0.5, jax.numpy.zeros(size[1]))
            for own, (name, size) in zip(keys, layers.items(), strict=True)
        }

    def linear(self, layer: Any, x: Any) -> Any:  # noqa: ANN401
        import jax.numpy as jnp

        kind = jnp.bfloat16 if self.shape.half else jnp.float32
        weight, bias = (part.astype(kind) for part in layer)
        return x.astype(kind) @ weight + bias

    def gates(self, weights: Any, observation: Any) -> Any:  # noqa: ANN401
        import jax.numpy as jnp

        seen = jnp.tanh(self.linear(weights["encoder"], observation))
        return self.linear(weights["input"], seen)

    def cell(self, weights: Any, gates: Any, memory: Any) -> Any:  # noqa: ANN401
        import jax
        import jax.numpy as jnp

        hidden, cell = memory
        whole = (gates + self.linear(weights["hidden"], hidden)).astype(jnp.float32)
        i, f, g, o = jnp.split(whole, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jnp.stack((jax.nn.sigmoid(o) * jnp.tanh(cell), cell))

    def heads(self, weights: Any, features: Any) -> tuple[Any, Any]:  # noqa: ANN401
        """Return log probabilities [..., A] and the quantiles of both critics [2, ..., N]."""
        import jax
        import jax.numpy as jnp

        def through(first: str, last: str) -> Any:  # noqa: ANN401
            inner = jnp.tanh(self.linear(weights[first], features))
            return self.linear(weights[last], inner).astype(jnp.float32)

        critics = [through(name, f"{name}_quantiles") for name in ("first", "second")]
        return jax.nn.log_softmax(through("actor", "logits")), jnp.stack(critics)


class _Market:
    """Random bars; a position of five levels, a fee on every change, episodes of fixed length."""

    def __init__(self, shape: Shape, seed: int) -> None:
        import jax

        keys = jax.random.split(jax.random.PRNGKey(seed + 1), 2)
        self.count = shape.environments
        self.features = jax.random.normal(keys[0], (SYMBOLS * BARS, shape.features))
        self.returns = 0.01 * jax.random.normal(keys[1], (SYMBOLS * BARS,))

    def begin(self, key: Any) -> Any:  # noqa: ANN401
        import jax
        import jax.numpy as jnp

        keys, size = jax.random.split(key, 3), (self.count,)
        return {
            "offset": BARS * jax.random.randint(keys[0], size, 0, SYMBOLS),
            "bar": jax.random.randint(keys[1], size, 0, BARS - 2 * EPISODE),
            "left": jax.random.randint(keys[2], size, 1, EPISODE),
            "position": jnp.zeros(size),
            "equity": jnp.ones(size),
        }

    def observe(self, state: Any) -> Any:  # noqa: ANN401
        import jax.numpy as jnp

        account = jnp.stack((state["position"], state["equity"] - 1.0), -1)
        return jnp.concatenate((self.features[state["offset"] + state["bar"]], account), -1)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401
        import jax
        import jax.numpy as jnp

        position, bar = jnp.array(LEVELS)[action], state["bar"] + 1
        paid = FEE * jnp.abs(position - state["position"])
        reward = position * self.returns[state["offset"] + bar] - paid
        equity, left = state["equity"] * (1.0 + reward), state["left"] - 1
        over = (left <= 0) | (equity < 0.5)
        start = jax.random.randint(key, (self.count,), 0, BARS - 2 * EPISODE)
        after = {
            "offset": state["offset"],
            "bar": jnp.where(over, start, bar),
            "left": jnp.where(over, EPISODE, left),
            "position": jnp.where(over, 0.0, position),
            "equity": jnp.where(over, 1.0, equity),
        }
        return after, reward, over


class _Update:
    """One rollout and its epochs, as a function of the state."""

    def __init__(self, shape: Shape, network: _Network, market: _Market) -> None:
        self.shape, self.network, self.market = shape, network, market

    def __call__(self, state: Any) -> Any:  # noqa: ANN401
        import jax

        weights, moments, market, memory, key = state
        key, of_rollout, of_epochs = jax.random.split(key, 3)
        (market, after), rows = self._rollout(weights, market, memory, of_rollout)
        data = (*self._estimates(weights, market, after, rows), memory)

        def epoch(carry: Any, own: Any) -> Any:  # noqa: ANN401
            order = jax.random.permutation(own, self.shape.environments)
            parts = order.reshape(self.shape.minibatches, -1)
            return jax.lax.scan(lambda c, chosen: (self._step(c, data, chosen), None), carry, parts)

        keys = jax.random.split(of_epochs, self.shape.epochs)
        (weights, moments), _ = jax.lax.scan(epoch, (weights, moments), keys)
        return weights, moments, market, after, key

    def _rollout(self, weights: Any, market: Any, memory: Any, key: Any) -> Any:  # noqa: ANN401
        import jax
        import jax.numpy as jnp

        def row(carry: Any, own: Any) -> Any:  # noqa: ANN401
            state, memory = carry
            of_action, of_market = jax.random.split(own)
            seen = self.market.observe(state)
            memory = self.network.cell(weights, self.network.gates(weights, seen), memory)
            log_probs, quantiles = self.network.heads(weights, memory[0])
            action = jax.random.categorical(of_action, log_probs)
            log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
            state, reward, over = self.market.step(state, action, of_market)
            memory = memory * ~over[:, None]
            value = quantiles.mean(-1).min(0)
            return (state, memory), (seen, action, log_prob, value, reward, over)

        return jax.lax.scan(row, (market, memory), jax.random.split(key, self.shape.steps))

    def _estimates(self, weights: Any, market: Any, memory: Any, rows: Any) -> Any:  # noqa: ANN401
        """Return observations, actions, log probabilities, ends, advantages and returns."""
        import jax
        import jax.numpy as jnp

        seen, action, log_prob, value, reward, over = rows
        gates = self.network.gates(weights, self.market.observe(market))
        _, quantiles = self.network.heads(weights, self.network.cell(weights, gates, memory)[0])

        def back(carry: Any, row: Any) -> Any:  # noqa: ANN401
            later, next_value = carry
            own, paid, ends = row
            later = paid + GAMMA * next_value * ~ends - own + GAMMA * LAM * ~ends * later
            return (later, own), later

        begin = (jnp.zeros_like(value[0]), quantiles.mean(-1).min(0))
        _, advantage = jax.lax.scan(back, begin, (value, reward, over), reverse=True)
        scaled = (advantage - advantage.mean()) / (advantage.std() + EPSILON)
        return seen, action, log_prob, over, scaled, advantage + value

    def _loss(self, weights: Any, part: Any) -> Any:  # noqa: ANN401
        import jax
        import jax.numpy as jnp

        seen, action, old, over, advantage, returns, memory = part

        def row(memory: Any, now: Any) -> Any:  # noqa: ANN401
            gates, ends = now
            memory = self.network.cell(weights, gates, memory)
            return memory * ~ends[:, None], memory[0]

        _, features = jax.lax.scan(row, memory, (self.network.gates(weights, seen), over))
        log_probs, quantiles = self.network.heads(weights, features)
        taken = jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0]
        ratio = jnp.exp(jnp.clip(taken - old, -20.0, 20.0))
        bounded = jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP)
        policy = -jnp.minimum(ratio * advantage, bounded * advantage).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        levels = (jnp.arange(self.shape.quantiles) + 0.5) / self.shape.quantiles
        gap = returns[..., None] - quantiles
        size = jnp.abs(gap)
        huber = jnp.where(size <= 1.0, 0.5 * gap * gap, size - 0.5)
        value = (jnp.abs(levels - (gap < 0)) * huber).mean()
        return policy - ENTROPY * entropy + VALUE * value

    def _step(self, carry: Any, data: Any, chosen: Any) -> Any:  # noqa: ANN401
        """Take one step of Adam (Kingma & Ba 2015) on some environments, after a clip."""
        import jax
        import jax.numpy as jnp

        weights, (first, second, count) = carry
        part = tuple(column[:, chosen] for column in data)
        slopes = jax.grad(self._loss)(weights, part)
        norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(slopes)))
        share = jnp.minimum(1.0, MAX_NORM / (norm + EPSILON))
        slopes = jax.tree.map(lambda leaf: share * leaf, slopes)
        count = count + 1.0
        mean, square = BETAS
        first = jax.tree.map(lambda m, g: mean * m + (1.0 - mean) * g, first, slopes)
        second = jax.tree.map(lambda v, g: square * v + (1.0 - square) * g * g, second, slopes)

        def moved(weight: Any, m: Any, v: Any) -> Any:  # noqa: ANN401
            size = jnp.sqrt(v / (1.0 - square**count)) + EPSILON
            return weight - self.shape.learning_rate * m / (1.0 - mean**count) / size

        return jax.tree.map(moved, weights, first, second), (first, second, count)
