"""Check the CUDA kernels of `stormsail.functional.kernels` against float64 and time them.

    python bench/kernels.py [--json FILE] [--quick] [--tiles] [--only NAME,NAME]

Needs torch, Triton and a CUDA device, nothing else of the project's dependencies. Times are medians
of replays of a CUDA graph. The bound of a kernel is the larger of two times: operations over the
matrix rate and bytes over the copy bandwidth, both measured first; bytes count each input read
once and each output written once.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from stormsail.functional.kernels import sequences, target_rows
from stormsail.functional.kernels.layers import dense, heads, recurrent
from stormsail.functional.kernels.losses import policy_loss, quantile_pairs

DEVICE = "cuda"
ROWS = 64
SAMPLES = 262_144
"""Of a minibatch."""
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 1e-2}
"""Relative error against float64 that a kernel may have: float32 products may be TF32."""


def error(got: Tensor, want: Tensor) -> float:
    """Return the size of the difference in units of the size of the reference."""
    want = want.detach()
    return float((got.detach().double() - want).norm() / want.norm().clamp(min=1e-30))


# References: float64, recorded by autograd step by step, written from the definitions.


def lstm_reference(x, weights, state, reset, initial):  # noqa: ANN001, ANN201
    """Return outputs and the state after the last row."""
    h, c, rows = state[:, 0], state[:, 1], []
    for t in range(len(x)):
        start = reset[t][:, None]
        h, c = torch.where(start, initial[0], h), torch.where(start, initial[1], c)
        i, f, g, o = (x[t] @ weights[0].t() + h @ weights[1].t() + weights[2] + weights[3]).chunk(
            4, -1
        )
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        rows.append(h)
    return torch.stack(rows), torch.stack((h, c), 1)


def gru_reference(x, weights, state, reset, initial):  # noqa: ANN001, ANN201
    """Return outputs and the state after the last row."""
    h, rows = state[:, 0], []
    for t in range(len(x)):
        h = torch.where(reset[t][:, None], initial[0], h)
        xr, xz, xn = (x[t] @ weights[0].t() + weights[2]).chunk(3, -1)
        hr, hz, hn = (h @ weights[1].t() + weights[3]).chunk(3, -1)
        z = (xz + hz).sigmoid()
        h = (1.0 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * h
        rows.append(h)
    return torch.stack(rows), h[:, None]


def quantile_reference(theta: Tensor, y: Tensor, tau: Tensor, kappa: float) -> Tensor:
    """Return the quantile Huber loss from all pairs."""
    u = y.unsqueeze(-2) - theta.unsqueeze(-1)
    size = torch.where(u.abs() <= kappa, 0.5 * u * u / max(kappa, 1e-300), u.abs() - 0.5 * kappa)
    return (torch.where(u < 0, 1.0 - tau[:, None], tau[:, None]) * size).mean((-2, -1))


def policy_reference(logits, action, old_log_prob, old_logits, advantage, weight):  # noqa: ANN001, ANN201
    """Return loss, entropy, k3 and KL as sums."""
    log_prob, old = logits.log_softmax(-1), old_logits.log_softmax(-1)
    log_ratio = log_prob.gather(-1, action[..., None])[..., 0] - old_log_prob
    ratio = log_ratio.exp()
    surrogate = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    entropy = -(log_prob.exp() * log_prob).sum(-1)
    kl = (old.exp() * (old - log_prob)).sum(-1)
    columns = (surrogate - 0.01 * entropy + 0.3 * kl, entropy, ratio - 1.0 - log_ratio, kl)
    return [(column * weight).sum() for column in columns]


def gae_reference(reward, value, bootstrap, terminated, truncated):  # noqa: ANN001, ANN201
    """Return the advantages for gamma .99 and lambda .95."""
    following, rows = torch.zeros_like(reward[0]), []
    for t in range(len(reward) - 1, -1, -1):
        delta = reward[t] + 0.99 * torch.where(terminated[t], 0.0, bootstrap[t]) - value[t]
        done = terminated[t] | truncated[t]
        following = delta + 0.99 * 0.95 * torch.where(done, 0.0, following)
        rows.append(following)
    return torch.stack(rows[::-1])


def nstep_reference(reward, quantiles, terminated, truncated, steps):  # noqa: ANN001, ANN201
    """Return the atoms of the n-step targets, one window after the other."""
    rows, batch = reward.shape
    target = torch.empty_like(quantiles)
    for t in range(rows):
        for b in range(batch):
            last = t
            while last - t + 1 < steps and last + 1 < rows:
                if terminated[last, b] or truncated[last, b]:
                    break
                last += 1
            total = sum(0.99 ** (k - t) * reward[k, b] for k in range(t, last + 1))
            tail = 0.0 if terminated[last, b] else 0.99 ** (last - t + 1) * quantiles[last, b]
            target[t, b] = total + tail
    return target


class Draw:
    """Fresh random tensors on the device."""

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator(DEVICE).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return normal numbers."""
        return torch.randn(*shape, device=DEVICE, generator=self._source) * scale

    def flags(self, *shape: int, share: float) -> Tensor:
        """Return flags of which that share is set."""
        return torch.rand(*shape, device=DEVICE, generator=self._source) < share

    def layer(self, kind: str, inputs: int, width: int) -> list[Tensor]:
        """Return the weights of a layer."""
        gates = {"lstm": 4, "gru": 3}[kind] * width
        sizes = ((gates, inputs), (gates, width), (gates,), (gates,))
        return [self.normal(*size, scale=width**-0.5) for size in sizes]


def check_recurrence(report: list[tuple[str, float, float]]) -> None:
    """Compare outputs, states and all gradients of both layers."""
    cases = (
        (9, 300, 256, 256, 0.2), (64, 130, 34, 64, 0.02), (7, 33, 5, 70, 0.3),
        (5, 17, 8, 24, 1.0), (5, 4096, 64, 64, 0.0), (1, 3, 5, 4, 0.5),
    )  # fmt: skip
    references = {"lstm": lstm_reference, "gru": gru_reference}
    for kind, reference in references.items():
        for dtype in (torch.float32, torch.bfloat16):
            worst = 0.0
            for seed, (rows, batch, inputs, width, share) in enumerate(cases):
                draw, parts = Draw(seed), 2 if kind == "lstm" else 1
                leaves = [
                    draw.normal(rows, batch, inputs), *draw.layer(kind, inputs, width),
                    draw.normal(batch, parts, width), draw.normal(parts, width),
                ]  # fmt: skip
                reset = draw.flags(rows, batch, share=share)
                mine = [leaf.requires_grad_() for leaf in leaves]
                output, after = recurrent.recurrent_sequence(
                    kind, mine[0], recurrent.Layer(*mine[1:5]), mine[5], reset, mine[6],
                    dtype=dtype,
                )  # fmt: skip
                shares = draw.normal(*output.shape), draw.normal(*after.shape)
                total = (output.float() * shares[0]).sum() + (after * shares[1]).sum()
                got = [output, after, *torch.autograd.grad(total, mine)]
                exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
                results = reference(exact[0], exact[1:5], exact[5], reset, exact[6])
                total = sum((a * b.double()).sum() for a, b in zip(results, shares, strict=True))
                want = [*results, *torch.autograd.grad(total, exact)]
                worst = max(worst, *(error(a, b) for a, b in zip(got, want, strict=True)))
            name = f"{kind} {str(dtype)[6:]}"
            report.append((name, worst, BOUNDS[dtype]))


def check_losses(report: list[tuple[str, float, float]]) -> None:
    """Compare losses, their gradients and what is reported."""
    draw, worst = Draw(7), 0.0
    for levels, atoms, kappa in ((32, 32, 0.02), (5, 9, 0.0), (200, 64, 1.0)):
        theta, y = draw.normal(1001, 2, levels).requires_grad_(), draw.normal(1001, 1, atoms)
        tau = (torch.arange(levels, device=DEVICE) + 0.5) / levels
        loss = quantile_pairs.huber_loss(theta, y.expand(-1, 2, -1), tau, kappa, None)
        exact = theta.detach().double().requires_grad_()
        want = quantile_reference(exact, y.double().expand(-1, 2, -1), tau.double(), kappa)
        share = draw.normal(1001, 2)
        mine = torch.autograd.grad((loss * share).sum(), theta)[0]
        theirs = torch.autograd.grad((want * share.double()).sum(), exact)[0]
        worst = max(worst, error(loss, want), error(mine, theirs))
    report.append(("quantile huber", worst, 1e-5))
    logits, old = draw.normal(9999, 5), draw.normal(9999, 5, scale=0.1)
    old = (logits + old).requires_grad_(requires_grad=False)
    logits.requires_grad_()
    action = draw.normal(9999, 5).argmax(-1)
    old_log = old.log_softmax(-1).gather(-1, action[:, None])[:, 0]
    data = (action, old_log, old, draw.normal(9999), draw.normal(9999).abs())
    sums = policy_loss.policy_sums(
        logits, *data, clip=0.2, entropy_coef=0.01, kl_coef=0.3, extreme=10.0
    )
    exact = logits.detach().double().requires_grad_()
    want = policy_reference(exact, action, *(part.double() for part in data[1:]))
    got = (sums.loss, sums.entropy, sums.kl, sums.analytic_kl)
    worst = max(error(a, b) for a, b in zip(got, want, strict=True))
    mine, theirs = (
        torch.autograd.grad(sums.loss, logits)[0],
        torch.autograd.grad(want[0], exact)[0],
    )
    report.append(("policy loss", max(worst, error(mine, theirs)), 1e-4))


def check_targets(report: list[tuple[str, float, float]]) -> None:
    """Compare advantages and n-step atoms."""
    draw = Draw(11)
    reward, value, ahead = (draw.normal(13, 37) for _ in range(3))
    flags = draw.flags(13, 37, share=0.1), draw.flags(13, 37, share=0.1)
    got = target_rows.gae(reward, value, ahead, *flags, gamma=0.99, lam=0.95)
    want = gae_reference(reward.double(), value.double(), ahead.double(), *flags)
    report.append(("gae", error(got, want), 1e-6))
    atoms, worst = draw.normal(13, 37, 5), 0.0
    for steps in (1, 4, 13):
        got = target_rows.quantile_nstep_targets(reward, atoms, *flags, gamma=0.99, steps=steps)
        parts = (part.cpu() for part in (reward.double(), atoms.double(), *flags))
        want = nstep_reference(*parts, steps)
        worst = max(worst, error(got.cpu(), want))
    report.append(("n-step atoms", worst, 1e-6))


def seconds(work: Callable[[], object], *, replays: int = 15, inside: int = 1) -> float:
    """Return the median time of a replay of the captured work, over `inside` runs of it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inside):
            work()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    for mark in marks[:-1]:
        mark.record()
        graph.replay()
    marks[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return sorted(times)[len(times) // 2] * 1e-3 / inside


def ceilings() -> tuple[float, float]:
    """Return the measured matrix rate (operations a second, bfloat16) and copy bandwidth."""
    a, b = (torch.randn(8192, 8192, device=DEVICE).bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    rate = 2 * 8192**3 / seconds(lambda: torch.mm(a, b, out=out))
    data = torch.randn(1 << 28, device=DEVICE)
    copy = torch.empty_like(data)
    return rate, 2 * data.nbytes / seconds(lambda: copy.copy_(data))


Row = tuple[str, float, float, float]
"""Name, seconds, operations on matrix units, bytes."""


def time_recurrence(
    rows: list[Row],
    sizes: list[tuple[str, int, int]],
    *,
    sweeping: bool = False,
) -> None:
    """Time whole layers, and the matrix products of one alone; a sweep wants whole layers only."""
    for kind, batch, width in sizes:
        draw, parts = Draw(3), 2 if kind == "lstm" else 1
        x = draw.normal(ROWS, batch, width).bfloat16().requires_grad_()
        weights = [weight.requires_grad_() for weight in draw.layer(kind, width, width)]
        layer, state = recurrent.Layer(*weights), draw.normal(batch, parts, width)
        reset, initial = draw.flags(ROWS, batch, share=0.002), torch.zeros(parts, width).cuda()
        upper = draw.normal(ROWS, batch, width).bfloat16()

        args = (kind, x, layer, state, reset, initial)
        forward = partial(_forward, *args)
        both = partial(_both, args, [x, *weights], upper)
        samples = ROWS * batch
        operations = 2.0 * samples * 4 * width * 2 * width
        # forward: input, joint, active, cell, output; back: those but the input, and gradients
        once = samples * width * (2 + 4 + 8 + 4 + 2)
        back = samples * width * (8 + 4 + 4 + 2 + 8 + 4)
        name = f"{kind} {width} B {batch}"
        rows.append((f"{name} forward", seconds(forward), operations, once))
        rows.append((f"{name} both", seconds(both), 3 * operations, once + back))
        if sweeping:
            continue
        with torch.no_grad():
            products = _products(batch, width)
            rows.append((f"{name} products", seconds(products), 3 * operations, 0.0))
            one, none = x.detach()[:1], torch.zeros_like(reset[:1])
            size = batch * width * (2 + 4 + 8 + 8 + 8 + 2)
            work = partial(_forward, kind, one, layer, state, none, initial)
            time = seconds(work, inside=8)
            rows.append((f"{name} one row", time, operations / ROWS, size))


def _forward(*args: object) -> Tensor:
    return recurrent.recurrent_sequence(*args, dtype=torch.bfloat16)[0]


def _both(args: tuple[object, ...], leaves: list[Tensor], upper: Tensor) -> object:
    return torch.autograd.grad(_forward(*args), leaves, upper)


def sweep(rows: list[Row]) -> None:
    """Time a layer with several tiles of the kernel behind its product."""
    for plain in ((16, 64, 4), (8, 128, 4), (32, 64, 8), (8, 64, 2), (16, 128, 8), (4, 256, 4)):
        before, recurrent.PLAIN = recurrent.PLAIN, recurrent.Tile(*plain)
        found: list[Row] = []
        time_recurrence(found, [("lstm", 4096, 256)], sweeping=True)
        rows += [(f"{name} {plain}", *rest) for name, *rest in found]
        recurrent.PLAIN = before
    narrow = [("lstm", batch, 64) for batch in (128, 4096, 16384)]
    before, taken = recurrent.WHOLE, recurrent.is_narrow
    for whole in ((16, 64, 4), (16, 64, 2), (16, 64, 8), (32, 64, 4), (32, 64, 8), (64, 64, 8)):
        recurrent.WHOLE = recurrent.Tile(*whole, stages=1)
        found = []
        time_recurrence(found, narrow, sweeping=True)
        rows += [(f"{name} {whole}", *rest) for name, *rest in found]
    recurrent.WHOLE, recurrent.is_narrow = before, lambda *_: False
    found = []
    time_recurrence(found, narrow, sweeping=True)
    rows += [(f"{name} row by row", *rest) for name, *rest in found]
    recurrent.is_narrow = taken


def _products(batch: int, width: int) -> Callable[[], None]:
    """Return the matrix products that a layer needs, forward and back, and nothing else."""
    z = torch.randn(ROWS, batch, 2 * width, device=DEVICE).bfloat16()
    g = torch.randn(ROWS, batch, 4 * width, device=DEVICE).bfloat16()
    w = torch.randn(4 * width, 2 * width, device=DEVICE).bfloat16()

    def work() -> None:
        for t in range(ROWS):
            torch.mm(z[t], w.t(), out=g[t])
        for t in range(ROWS):
            torch.mm(g[t], w, out=z[t])
        torch.mm(g.flatten(0, 1).t(), z.flatten(0, 1), out_dtype=torch.float32)

    return work


def time_losses(rows: list[Row], samples: int, environments: int) -> None:
    """Time the losses of a minibatch and the targets of a rollout."""
    draw, levels = Draw(5), 32
    theta = draw.normal(samples, 2, levels).requires_grad_()
    y = draw.normal(samples, 1, levels).expand(-1, 2, -1)
    tau = (torch.arange(levels, device=DEVICE) + 0.5) / levels
    ones = torch.ones(samples, 2, device=DEVICE)

    def loss() -> object:
        value = quantile_pairs.huber_loss(theta, y, tau, 0.02, None)
        return torch.autograd.grad(value, theta, ones)

    size = samples * 4 * (2 * levels * 4 + levels)
    rows.append((f"quantile twins {samples}", seconds(loss), 0.0, size))

    def weighed() -> object:
        masses = (tau, tau)  # as the loss of an update
        value, _ = quantile_pairs.huber_loss_and_seen(theta, y, tau, 0.02, *masses)
        return torch.autograd.grad(value, theta, ones)

    rows.append((f"quantile twins by mass {samples}", seconds(weighed), 0.0, size))
    work = lambda: quantile_pairs.huber_active(theta.detach(), y, 0.02, None)  # noqa: E731
    rows.append((f"linear share {samples}", seconds(work), 0.0, samples * 4 * 3 * levels))
    logits = draw.normal(samples, 5).requires_grad_()
    data = (
        draw.normal(samples, 5).argmax(-1), draw.normal(samples) - 1.6, draw.normal(samples, 5),
        draw.normal(samples), torch.ones(samples, device=DEVICE),
    )  # fmt: skip

    def policy() -> object:
        options = {"clip": 0.2, "entropy_coef": 0.01, "kl_coef": 0.0, "extreme": 10.0}
        return torch.autograd.grad(policy_loss.policy_sums(logits, *data, **options).loss, logits)

    rows.append((f"policy loss {samples}", seconds(policy), 0.0, samples * (4 * 25 + 8 + 16)))
    reward, value, ahead = (draw.normal(ROWS, environments) for _ in range(3))
    flags = [draw.flags(ROWS, environments, share=0.002) for _ in range(2)]
    count = ROWS * environments
    work = lambda: target_rows.gae(reward, value, ahead, *flags, gamma=0.99, lam=0.95)  # noqa: E731
    rows.append((f"gae {environments}", seconds(work), 0.0, count * 18))
    atoms = draw.normal(ROWS, environments, levels)
    work = lambda: target_rows.quantile_nstep_targets(  # noqa: E731
        reward, atoms, *flags, gamma=0.99, steps=ROWS
    )
    rows.append((f"n-step atoms {environments}", seconds(work), 0.0, count * (8 * levels + 6)))


def time_heads(rows: list[Row], samples: int, width: int, *, sweeping: bool) -> None:
    """Time actor and twin critics on one input, layer by layer and side by side."""
    draw = Draw(6)
    x = draw.normal(samples, width).bfloat16().requires_grad_()
    sizes = (5, 32, 32)
    own = [
        heads.Head(
            *(
                draw.normal(*shape, scale=width**-0.5).requires_grad_()
                for shape in ((width, width), (width,), (outputs, width), (outputs,))
            )
        )
        for outputs in sizes
    ]
    leaves = [x, *(part for head in own for part in head)]
    uppers = draw.normal(samples, 1, 5).bfloat16(), draw.normal(samples, 2, 32).bfloat16()

    def apart() -> list[Tensor]:
        outputs = [
            dense.dense(dense.dense(x, *head[:2], tanh=True), *head[2:], tanh=False) for head in own
        ]
        return [outputs[0][:, None], torch.stack(outputs[1:], -2)]

    def together() -> list[Tensor]:
        return [part.bfloat16() for part in heads.heads(x, [own[:1], own[1:]])]

    operations = 2.0 * samples * width * (3 * width + sum(sizes))
    once = 2.0 * samples * (width + 3 * width + sum(sizes))
    back = once + 2.0 * samples * (3 * width + 2 * width)
    ways = {"layer by layer": apart, "side by side": together}
    for name, way in ways.items():
        work = partial(_heads_both, way, leaves, uppers)
        with torch.no_grad():
            rows.append((f"heads {width} {name} forward", seconds(way), operations, once))
        rows.append((f"heads {width} {name} both", seconds(work), 3 * operations, once + back))
    with torch.no_grad():
        _time_parts_of_heads(rows, x.detach(), own, uppers[1], sweeping=sweeping)


def _heads_both(
    way: Callable[[], list[Tensor]], leaves: list[Tensor], uppers: tuple[Tensor, ...]
) -> object:
    return torch.autograd.grad(way(), leaves, uppers)


def _time_parts_of_heads(
    rows: list[Row], x: Tensor, own: list[heads.Head], upper: Tensor, *, sweeping: bool
) -> None:
    """Time the kernels of heads one by one, with several tiles if wanted."""
    (samples, width), critics = x.shape, own[1:]
    first = torch.cat([head.weight for head in own]).bfloat16()
    shift = torch.cat([head.bias for head in own])
    last = torch.stack([head.last_weight for head in critics]).bfloat16()
    last_shift = torch.stack([head.last_bias for head in critics])
    hidden, slope = (torch.rand(samples, 3 * width, device=DEVICE).bfloat16() for _ in range(2))
    ours, theirs, above = hidden[:, width:], slope[:, width:], upper.float()
    bytes_of = 2.0 * samples * width
    works = {
        "KEPT": (dense, lambda: dense.squashed(x, first, shift), 4 * bytes_of),
        "PRODUCT": (dense, lambda: dense.squashed(x, first, shift), 4 * bytes_of),
        "LAST": (heads, lambda: heads._last_layers(ours, last, last_shift), 2 * bytes_of),
        "BACK": (heads, lambda: heads._back(above, ours, last, theirs), 4 * bytes_of),
    }
    kept = {
        256: (
            (64, 128, 256, 4, 1, 2), (64, 128, 256, 4, 2, 1), (64, 64, 256, 4, 1, 3),
            (64, 64, 256, 4, 2, 2), (64, 128, 256, 8, 2, 1), (128, 64, 256, 4, 1, 2),
        ),
        64: (
            (64, 128, 64, 4, 3, 3), (64, 128, 64, 4, 1, 3), (64, 128, 64, 4, 3, 2),
            (64, 64, 64, 4, 3, 4), (128, 128, 64, 8, 3, 2),
        ),
    }  # fmt: skip
    tiles = {
        "KEPT": kept.get(width, ()),
        "PRODUCT": ((64, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3)),
        "LAST": ((128, 64, 4), (64, 64, 4), (128, 128, 4)),
        "BACK": ((64, 64, 4, 32), (64, 64, 4, 16), (64, 128, 8, 32), (32, 128, 4, 32)),
    }
    all_kept = dense.KEPT
    for name, (module, work, size) in works.items():
        before = getattr(module, name)
        for tile in tiles[name] if sweeping else tiles[name][:1]:
            dense.KEPT = () if name == "PRODUCT" else all_kept
            chosen = (dense.Tile(*tile),) if name == "KEPT" else type(before)(*tile)
            setattr(module, name, chosen)
            operations = 2.0 * samples * width * (3 * width if name[0] in "KP" else 64)
            rows.append((f"{name} {width} {tile}", seconds(work), operations, size))
        setattr(module, name, before)
        dense.KEPT = all_kept
    plain = lambda: torch.mm(x, first.t())  # noqa: E731
    rows.append((f"product {width} alone", seconds(plain), 6.0 * samples * width**2, 4 * bytes_of))


def _time_layers(rows: list[Row], *, sweeping: bool) -> None:
    sizes = [
        ("lstm", 4096, 256), ("lstm", 16384, 256), ("lstm", 4096, 64), ("lstm", 16384, 64),
        ("gru", 4096, 256),
    ]  # fmt: skip
    time_recurrence(rows, sizes)
    if sweeping:
        sweep(rows)


def _time_losses(rows: list[Row], *, sweeping: bool) -> None:
    time_losses(rows, SAMPLES, 16_384)
    before = policy_loss.SAMPLES, policy_loss.WARPS, quantile_pairs.ELEMENTS
    for elements, warps in ((1024, 4), (2048, 4), (4096, 4)) * sweeping:
        policy_loss.SAMPLES, policy_loss.WARPS = elements // 8, warps
        quantile_pairs.ELEMENTS = elements
        found: list[Row] = []
        time_losses(found, SAMPLES, 1_024)
        rows += [(f"{name} {elements} by {warps}", *rest) for name, *rest in found[:4]]
    policy_loss.SAMPLES, policy_loss.WARPS, quantile_pairs.ELEMENTS = before


def _time_heads(rows: list[Row], *, sweeping: bool) -> None:
    for width in (256, 64):
        time_heads(rows, SAMPLES, width, sweeping=sweeping)


def time_sequences(rows: list[Row], *, sweeping: bool) -> None:  # noqa: ARG001 - as the others
    """Time a minibatch's share of sequences, by torch and by ours."""
    draw = Draw(8)
    chosen = torch.randperm(16_384, device=DEVICE)[: SAMPLES // ROWS]
    for width in (1, 32, 40):
        table = draw.normal(ROWS, 16_384, width)
        size = 2.0 * 4 * SAMPLES * width
        ways = {
            "torch": partial(table.index_select, 1, chosen),
            "ours": partial(sequences.chosen_sequences, table, chosen, 1),
        }
        rows += [(f"sequences {width} {k}", seconds(w), 0.0, size) for k, w in ways.items()]


TIMED = {
    "recurrence": _time_layers,
    "losses": _time_losses,
    "heads": _time_heads,
    "sequences": time_sequences,
}


def main() -> int:
    """Print both tables; return 1 if a kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="check only")
    parser.add_argument("--tiles", action="store_true", help="try several tiles as well")
    parser.add_argument("--only", default=",".join(TIMED), help="what is timed")
    options = parser.parse_args()
    report: list[tuple[str, float, float]] = []
    for check in (check_recurrence, check_losses, check_targets):
        check(report)
    for name, worst, bound in report:
        print(f"{name:24} error {worst:9.2e}  bound {bound:.0e}  {_verdict(worst, bound)}")
    wrong = [name for name, worst, bound in report if not worst <= bound]
    rows: list[Row] = []
    rate, bandwidth = (0.0, 0.0) if options.quick else ceilings()
    if not options.quick:
        for name in options.only.split(","):
            TIMED[name](rows, sweeping=options.tiles)
            torch.cuda.empty_cache()
        print(f"\n{rate / 1e12:.0f} TFLOP/s bfloat16, {bandwidth / 1e12:.2f} TB/s copied")
        print(f"{'kernel':46} {'ms':>8} {'TFLOP/s':>8} {'TB/s':>6} {'bound ms':>9} {'share':>6}")
    for name, time, operations, size in rows:
        bound = max(operations / rate, size / bandwidth)
        figures = f"{operations / time / 1e12:8.0f} {size / time / 1e12:6.2f} {bound * 1e3:9.3f}"
        print(f"{name:46} {time * 1e3:8.3f} {figures} {bound / time:6.0%}")
    if options.json:
        found = {"checks": report, "rate": rate, "bandwidth": bandwidth, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if wrong else 0


def _verdict(worst: float, bound: float) -> str:
    return "ok" if worst <= bound else "WRONG"


if __name__ == "__main__":
    sys.exit(main())
