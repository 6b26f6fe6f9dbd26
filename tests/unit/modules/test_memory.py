"""What an agent remembers: resets, both ways of computing, and their gradients."""

import itertools

import pytest
import torch

from stormsail.core.errors import DtypeError, ShapeError
from stormsail.modules import memory as memory_module
from stormsail.modules.memory import Memory

T, B, INPUTS, H = 6, 4, 3, 5
KINDS = ("lstm", "gru")
PARTS = {"lstm": 2, "gru": 1}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def build(kind="lstm", *, layers=1, learn_initial=True, seed=0, dtype=torch.float64):
    """Return a memory whose biases and initial state are not zero, as after some training."""
    made = Memory(
        INPUTS,
        kind=kind,
        width=H,
        layers=layers,
        learn_initial=learn_initial,
        generator=seeded(seed),
    ).to(dtype)
    noise = seeded(seed + 100)
    for parameter in itertools.chain(made.input_biases, made.hidden_biases, [made.initial]):
        parameter.data.normal_(generator=noise)
    return made


def inputs(*, rows=T, seed=1, dtype=torch.float64):
    return torch.randn(rows, B, INPUTS, generator=seeded(seed), dtype=torch.float64).to(dtype)


def planted(*places, rows=T):
    reset = torch.zeros(rows, B, dtype=torch.bool)
    for t, b in places:
        reset[t, b] = True
    return reset


def stepwise(monkeypatch):
    """Make every call go row by row, as on a GPU."""
    monkeypatch.setattr(memory_module, "_may_read", lambda _: False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("first", [False, True])
def test_the_fused_and_the_stepwise_way_agree(kind, layers, first, monkeypatch):
    made = build(kind, layers=layers)
    x = inputs().requires_grad_()
    state = torch.randn(B, layers, PARTS[kind], H, generator=seeded(5)).double().requires_grad_()
    reset = planted((0, 1), (0, 3)) if first else planted()
    leaves = [x, state, *made.parameters()]

    def everything():
        output, after = made(x, state, reset)
        share = torch.linspace(-1.0, 1.0, output.numel()).double().reshape(output.shape)
        total = (output * share).sum() + after.square().sum()
        return [output, after, *torch.autograd.grad(total, leaves, materialize_grads=True)]

    fused = everything()
    stepwise(monkeypatch)
    for a, b in zip(fused, everything(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, "none"])
def test_one_call_a_row_is_one_call_for_all(kind):
    made = build(kind, layers=2)
    x, reset = inputs(), planted((0, 0), (2, 1), (2, 3), (5, 0))
    whole, end = made(x, made.initial_state(B) + 0.3, reset)
    state = made.initial_state(B) + 0.3
    for t in range(T):
        row, state = made(x[t : t + 1], state, reset[t : t + 1])
        torch.testing.assert_close(row[0], whole[t], rtol=0, atol=1e-13)
    torch.testing.assert_close(state, end, rtol=0, atol=1e-13)


@pytest.mark.spec("T-L2", "S1-L1", "S3-FP3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", range(1, T))
def test_a_reset_inside_a_sequence_starts_a_separate_one(kind, row):
    made = build(kind, layers=3)
    x = inputs()
    state = made.initial_state(B) - 0.7
    whole, end = made(x, state, planted((row, 2)))
    without, _ = made(x, state, planted())
    fresh, fresh_end = made(x[row:], made.initial_state(B), planted(rows=T - row))
    torch.testing.assert_close(whole[row:, 2], fresh[:, 2], rtol=0, atol=1e-13)
    torch.testing.assert_close(end[2], fresh_end[2], rtol=0, atol=1e-13)
    torch.testing.assert_close(whole[:row], without[:row], rtol=0, atol=1e-13)
    others = [0, 1, 3]
    torch.testing.assert_close(whole[:, others], without[:, others], rtol=0, atol=1e-13)
    assert (whole[row:, 2] - without[row:, 2]).abs().max() > 1e-3


@pytest.mark.spec("T-L2", "S1-L1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [0, 2])
def test_a_reset_of_one_environment_leaves_the_others_bit_for_bit(kind, row):
    made = build(kind, layers=2, dtype=torch.float32)
    x, state = inputs(dtype=torch.float32), made.initial_state(B) + 0.5
    base = planted((4, 3))  # both calls go the same way
    once, once_end = made(x, state, base)
    twice, twice_end = made(x, state, base | planted((row, 1)))
    others = [0, 2, 3]
    assert torch.equal(once[:, others], twice[:, others])
    assert torch.equal(once_end[others], twice_end[others])
    assert not torch.equal(once[row:, 1], twice[row:, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_everywhere_forgets_the_state_that_was_given(kind):
    made = build(kind)
    every = torch.ones(T, B, dtype=torch.bool)
    one, end = made(inputs(), made.initial_state(B), every)
    other, other_end = made(inputs(), torch.full_like(made.initial_state(B), torch.nan), every)
    assert torch.equal(one, other)
    assert torch.equal(end, other_end)


@pytest.mark.spec("T-L2", "S1-L1")
@pytest.mark.parametrize("learn_initial", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_initial_state_is_no_alias(kind, learn_initial):
    made = build(kind, learn_initial=learn_initial)
    kept = made.initial.detach().clone()
    with torch.no_grad():
        state = made.initial_state(B)
        state[0] += 1.0  # writes to one environment only
        assert torch.equal(state[1:], kept.expand(B - 1, *kept.shape))
        _, after = made(inputs(), made.initial_state(B), torch.ones(T, B, dtype=torch.bool))
        after.zero_()
    assert torch.equal(made.initial.detach(), kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_learned_initial_state_learns_through_resets_only(kind):
    made = build(kind)
    state = torch.zeros(B, 1, PARTS[kind], H, dtype=torch.float64)
    made(inputs(), state, planted())[0].sum().backward()
    assert torch.equal(made.initial.grad, torch.zeros_like(made.initial))  # never used
    made(inputs(), state, planted((2, 1)))[0].sum().backward()
    assert (made.initial.grad != 0.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_derivatives(kind):
    made = build(kind, layers=2)
    x = inputs().requires_grad_()
    state = torch.randn(B, 2, PARTS[kind], H, generator=seeded(5)).double().requires_grad_()
    reset = planted((0, 0), (3, 1))
    chosen = [made.initial, made.hidden_weights[1], made.hidden_biases[0]]
    assert torch.autograd.gradcheck(
        lambda *leaves: made(leaves[0], leaves[1], reset), (x, state, *chosen), fast_mode=True
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_agrees_with_the_stacked_layers_of_torch(kind):
    made = build(kind, layers=3)
    reference = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](INPUTS, H, 3).double()
    names = {"weight_ih": made.input_weights, "weight_hh": made.hidden_weights}
    names |= {"bias_ih": made.input_biases, "bias_hh": made.hidden_biases}
    with torch.no_grad():
        for name, parts in names.items():
            for layer, part in enumerate(parts):
                getattr(reference, f"{name}_l{layer}").copy_(part)
    state = torch.randn(B, 3, PARTS[kind], H, generator=seeded(5)).double()
    begin = tuple(part.contiguous() for part in state.permute(2, 1, 0, 3))
    wanted, end = reference(inputs(), begin if kind == "lstm" else begin[0])
    output, after = made(inputs(), state, planted())
    end = torch.stack(end if kind == "lstm" else (end,))  # [P, L, B, H]
    torch.testing.assert_close(output, wanted, rtol=0, atol=1e-14)
    torch.testing.assert_close(after, end.permute(2, 1, 0, 3), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3)])
def test_weights_start_orthogonal_and_biases_at_zero(kind, gates):
    made = Memory(
        INPUTS, kind=kind, width=H, layers=2, learn_initial=True, generator=seeded()
    ).double()
    sizes = [(gates * H, INPUTS), (gates * H, H), (gates * H, H), (gates * H, H)]
    weights = [*made.input_weights, *made.hidden_weights]
    assert sorted(tuple(weight.shape) for weight in weights) == sorted(sizes)
    for weight in weights:  # taller than wide: columns are orthonormal
        eye = torch.eye(weight.shape[1], dtype=torch.float64)
        torch.testing.assert_close(weight.t() @ weight, eye, rtol=0, atol=1e-6)
    for bias in [*made.input_biases, *made.hidden_biases, made.initial]:
        assert not bias.any()


def test_weights_come_from_the_generator_alone():
    def weights(seed, noise):
        torch.manual_seed(noise)
        return build(seed=seed).state_dict()

    first, again, other = weights(3, 1), weights(3, 2), weights(4, 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["hidden_weights.0"], other["hidden_weights.0"])


def test_without_a_memory_inputs_pass_and_the_state_is_empty():
    made = build("none")
    assert made.initial_state(B).shape == (B, 0, 1, INPUTS)
    x = inputs()
    output, after = made(x, made.initial_state(B), planted((2, 1)))
    assert torch.equal(output, x)
    assert after.shape == (B, 0, 1, INPUTS)
    assert made.width == INPUTS
    assert sum(parameter.numel() for parameter in made.parameters()) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast_the_carried_state_keeps_its_digits(kind, inside):
    made = build(kind, layers=2, dtype=torch.float32)
    x, state = inputs(dtype=torch.float32), made.initial_state(B)
    reset = planted((0, 1), (3, 2)) if inside else planted((0, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, after = made(x, state, reset)
        output.sum().backward()
    assert output.dtype == after.dtype == torch.float32
    wanted, wanted_after = made(x, state, reset)
    torch.testing.assert_close(output, wanted, rtol=0, atol=0.02)
    torch.testing.assert_close(after, wanted_after, rtol=0, atol=0.04)
    assert all(parameter.grad.isfinite().all() for parameter in made.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it traces
def test_it_compiles_without_a_graph_break():
    made, reset = build(), planted((2, 1), rows=3)
    x, state = inputs(rows=3), made.initial_state(B).detach()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    results = compiled(x, state, reset)
    torch._dynamo.reset()
    for a, b in zip(results, made(x, state, reset), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.refusal
def test_a_flag_that_is_a_number_is_refused():
    made = build()
    with pytest.raises(DtypeError):
        made(inputs(), made.initial_state(B), planted((2, 1)).double())


@pytest.mark.parametrize(
    ("x", "state", "reset"),
    [
        ((T, B, INPUTS), (B, 1, 2, H), (T, B - 1)),
        ((T, B, INPUTS), (B - 1, 1, 2, H), (T, B)),
        ((T, B, INPUTS), (B, 2, 2, H), (T, B)),
        ((T, B, INPUTS), (B, 1, 1, H), (T, B)),
        ((0, B, INPUTS), (B, 1, 2, H), (0, B)),
        ((B, INPUTS), (B, 1, 2, H), (B, INPUTS)),
        ((B,), (B, 1, 2, H), (B,)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, state, reset):
    flags = torch.zeros(reset, dtype=torch.bool)
    with pytest.raises(ShapeError):
        build()(torch.zeros(x).double(), torch.zeros(state).double(), flags)


@pytest.mark.refusal
def test_the_refusal_names_all_three_shapes():
    with pytest.raises(ShapeError) as caught:
        build()(inputs(), torch.zeros(B, 2, 2, H), planted())
    assert str(caught.value) == (
        "a memory must have inputs [T, B, I] of one row or more, `reset` [T, B] and `state` "
        "(4, 1, 2, 5); found inputs (6, 4, 3), reset (6, 4) and state (4, 2, 2, 5). Take the "
        "state from `initial_state` or from the call before. [shape-mismatch]"
    )
