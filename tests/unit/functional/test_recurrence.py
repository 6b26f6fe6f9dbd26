"""Values, gradients and refusals of `stormsail.functional.recurrence`."""

import itertools
import math

import pytest
import torch

from stormsail.core.errors import DtypeError, ShapeError
from stormsail.functional import recurrence

T, B, H = 7, 3, 2
KINDS = ("lstm", "gru")
PARTS = {"lstm": 4, "gru": 3}
RESET = 4  # its position in both signatures


def draw(kind, *, rows=T, seed=3):
    """Return the arguments of a sequence, all of them leaves."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.requires_grad_()

    parts = PARTS[kind]
    reset = torch.rand(rows, B, generator=generator) < 0.3
    gates, weight, bias = normal(rows, B, parts * H), normal(parts * H, H), normal(parts * H)
    states = normal(B, H), normal(B, H)
    initial = normal(H), normal(H)
    if kind == "lstm":
        return gates, weight, *states, reset, *initial
    return gates, weight, bias, states[0], reset, initial[0]


def run(kind, args):
    """Return the results of a sequence as a tuple."""
    if kind == "lstm":
        return recurrence.lstm_sequence(*args)
    return (recurrence.gru_sequence(*args),)


def test_one_step_by_hand():
    # Zero weight, gates all zero: i = f = o = 1/2, g = 0, so c halves and h = tanh(c / 2) / 2.
    zero = torch.zeros(1, 1, 4, dtype=torch.float64)
    state = torch.full((1, 1), 0.8, dtype=torch.float64)
    keep, start = torch.tensor([[False]]), torch.tensor([[True]])
    args = (zero, torch.zeros(4, 1, dtype=torch.float64), state, state)
    far = torch.full((1,), 2.0, dtype=torch.float64)
    output, cell = recurrence.lstm_sequence(*args, keep, far, far)
    assert float(cell) == 0.4
    assert math.isclose(float(output), 0.5 * math.tanh(0.4), rel_tol=1e-15)
    output, cell = recurrence.lstm_sequence(*args, start, far, far)
    assert float(cell) == 1.0
    assert math.isclose(float(output), 0.5 * math.tanh(1.0), rel_tol=1e-15)
    # The same for a GRU: r = z = 1/2, n = 0, so h halves.
    args = (zero[..., :3], torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3).double(), state)
    assert float(recurrence.gru_sequence(*args, keep, far)) == 0.4
    assert float(recurrence.gru_sequence(*args, start, far)) == 1.0


@pytest.mark.parametrize(("kind", "reference"), [("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)])
def test_without_resets_it_is_the_layer_of_torch(kind, reference):
    torch_layer = reference(H, H).double()
    args = draw(kind)
    x = torch.randn(T, B, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gates = x @ torch_layer.weight_ih_l0.t() + torch_layer.bias_ih_l0
    never = torch.zeros(T, B, dtype=torch.bool)
    if kind == "lstm":
        state = (args[2][None], args[3][None])
        wanted, (_, cell) = torch_layer(x, state)
        gates = gates + torch_layer.bias_hh_l0
        mine = (gates, torch_layer.weight_hh_l0, *args[2:4], never, *args[5:])
        output, last = recurrence.lstm_sequence(*mine)
        torch.testing.assert_close(last, cell[0], rtol=0, atol=1e-14)
    else:
        wanted, _ = torch_layer(x, args[3][None])
        mine = (gates, torch_layer.weight_hh_l0, torch_layer.bias_hh_l0, args[3], never, args[5])
        output = recurrence.gru_sequence(*mine)
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-14)


@pytest.mark.spec("T-L2", "S1-L1", "S3-FP3")
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_with_resets_is_several_sequences_without(kind):
    args = draw(kind)
    reset = args[RESET]
    whole = run(kind, args)[0]
    assert reset[1:].any(), "the draw must hold a reset inside"
    for b in range(B):
        starts = [0, *[t for t in range(1, T) if reset[t, b]], T]
        for begin, end in itertools.pairwise(starts):
            part = list(args)
            part[0] = args[0][begin:end, b : b + 1]
            part[RESET] = torch.zeros(end - begin, 1, dtype=torch.bool)
            fresh = bool(reset[begin, b])
            states = (2, 3) if kind == "lstm" else (3,)
            for k, initial in zip(states, args[RESET + 1 :], strict=False):
                part[k] = initial[None] if fresh else args[k][b : b + 1]
            piece = run(kind, part)[0]
            torch.testing.assert_close(piece[:, 0], whole[begin:end, b], rtol=0, atol=1e-14)


def recorded(kind, args):
    """The same sequence with plain operations that autograd records row by row."""
    if kind == "lstm":
        gates, weight, h, c, reset, h0, c0 = args
    else:
        gates, weight, bias, h, reset, h0 = args
    rows = []
    for t in range(gates.shape[0]):
        start = reset[t][:, None]
        h = torch.where(start, h0, h)
        if kind == "lstm":
            i, f, g, o = (gates[t] + h @ weight.t()).chunk(4, -1)
            c = f.sigmoid() * torch.where(start, c0, c) + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            (xr, xz, xn), (r, z, n) = gates[t].chunk(3, -1), (h @ weight.t() + bias).chunk(3, -1)
            r, z = (xr + r).sigmoid(), (xz + z).sigmoid()
            h = (1.0 - z) * (xn + r * n).tanh() + z * h
        rows.append(h)
    return (torch.stack(rows), c) if kind == "lstm" else (torch.stack(rows),)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, T])
def test_every_gradient_is_that_of_the_recorded_operations(kind, rows):
    args = draw(kind, rows=rows)
    leaves = [arg for arg in args if arg.is_floating_point()]

    def gradients(results):
        shares = [torch.linspace(-1.0, 2.0, x.numel()).double().reshape(x.shape) for x in results]
        total = sum((x * share).sum() for x, share in zip(results, shares, strict=True))
        return torch.autograd.grad(total, leaves)

    mine, wanted = gradients(run(kind, args)), gradients(recorded(kind, args))
    for a, b in zip(mine, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_crosses_a_reset(kind):
    args = list(draw(kind))
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[3] = True
    args[RESET] = reset
    after = run(kind, args)[0][3:].sum()
    grad_gates = torch.autograd.grad(after, args[0])[0]
    assert torch.equal(grad_gates[:3], torch.zeros(3, B, PARTS[kind] * H, dtype=torch.float64))
    assert (grad_gates[3] != 0.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_after_a_reset_does_not_reach_the_episode_before(kind):
    args = list(draw(kind))
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[3] = True
    args[RESET] = reset
    broken = args[0].detach().clone()
    broken[5] = math.nan
    args[0] = broken.requires_grad_()
    output = run(kind, args)[0]
    assert output[:5].isfinite().all()
    grad_gates = torch.autograd.grad(output.sum(), args[0])[0]
    assert grad_gates[:3].isfinite().all()
    assert grad_gates[3:6].isnan().all()


@pytest.mark.unshaped
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it traces
@pytest.mark.parametrize("kind", KINDS)
def test_it_may_be_differentiated_inside_a_compiled_graph(kind):
    args = draw(kind, rows=3)
    leaves = [arg for arg in args if arg.is_floating_point()]
    function = recurrence.lstm_sequence if kind == "lstm" else recurrence.gru_sequence

    def loss(*given):
        results = function(*given)
        return sum(x.square().sum() for x in (results if kind == "lstm" else (results,)))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    mine = torch.autograd.grad(compiled(*args), leaves)
    torch._dynamo.reset()
    for a, b in zip(mine, torch.autograd.grad(loss(*args), leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_strided_inputs_give_the_same_numbers(kind):
    args = [arg.detach() for arg in draw(kind)]
    strided = list(args)
    strided[0] = args[0].transpose(0, 1).contiguous().transpose(0, 1)
    strided[1] = args[1].t().contiguous().t()
    for a, b in zip(run(kind, args), run(kind, strided), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


@pytest.mark.refusal
def test_a_flag_that_is_a_number_is_refused():
    args = list(draw("gru"))
    args[4] = args[4].double()
    with pytest.raises(DtypeError):
        recurrence.gru_sequence(*args)


@pytest.mark.refusal
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [0, 1, 2, 3, RESET, -1])
def test_a_part_of_another_width_is_refused(kind, position):
    args = [arg.detach() for arg in draw(kind)]
    args[position] = args[position][:-1]
    with pytest.raises(ShapeError):
        run(kind, args)


@pytest.mark.refusal
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_without_rows_is_refused(kind):
    args = [arg.detach() for arg in draw(kind)]
    args[0], args[RESET] = args[0][:0], args[RESET][:0]
    with pytest.raises(ShapeError) as caught:
        run(kind, args)
    parts = PARTS[kind]
    assert str(caught.value) == (
        f"a layer of width H must have gates [T, B, {parts} H], weight [{parts} H, H], a state "
        f"[B, H], reset [T, B] and an initial state [H]; found gates (0, 3, {parts * H}), weight "
        f"({parts * H}, 2), state (3, 2), reset (0, 3) and initial state (2,). Compute the gates "
        "of all rows, one or more, before the call. [shape-mismatch]"
    )
