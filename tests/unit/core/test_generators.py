import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stormsail.core.errors import ArgumentError, ArtifactError, RangeError
from stormsail.core.generators import Generators


def draws(generators: Generators, name: str, count: int = 8) -> list[float]:
    return torch.rand(count, generator=generators.stream(name)).tolist()


def test_golden_values():
    generators = Generators(7)
    numbers = torch.randint(0, 10**6, (4,), generator=generators.stream("rollout.actions"))
    assert numbers.tolist() == [911139, 230458, 209182, 881463]
    assert generators.numpy("world").bit_generator.random_raw(3).tolist() == [
        4435897379035995512,
        3989311794668523370,
        9332990039774968296,
    ]
    assert generators.spawn("member.3").seed == 306812725466789525
    zero = torch.randint(0, 10**6, (4,), generator=Generators(0).stream("rollout.actions"))
    assert zero.tolist() == [479428, 120652, 277860, 419587]


@given(seed=st.integers(0, 2**63 - 1), kind=st.sampled_from(["torch", "spawn"]))
def test_a_seed_is_the_hash_of_kind_seed_and_name(seed, kind):
    text = f"stormsail.generators.1\n{kind}\n{seed}\na.b"
    expected = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)
    generators = Generators(seed)
    actual = {
        "torch": generators.stream("a.b").initial_seed(),
        "spawn": generators.spawn("a.b").seed,
    }
    assert actual[kind] == expected


def test_a_stream_is_the_same_object_each_time():
    generators = Generators(1)
    assert generators.stream("a") is generators.stream("a")
    assert generators.numpy("a") is generators.numpy("a")
    assert generators.spawn("a") is generators.spawn("a")


def test_streams_do_not_depend_on_the_order_of_their_making():
    first, second = Generators(3), Generators(3)
    forward = [draws(first, name) for name in ("a", "b", "c.d")]
    second.numpy("b").random()
    draws(second.spawn("b"), "b")
    backward = [draws(second, name) for name in ("c.d", "b", "a")]
    assert forward == backward[::-1]


def test_everything_with_another_name_or_seed_is_another_stream():
    tree = Generators(5)
    samples = [
        draws(tree, "a"),
        draws(tree, "b"),
        draws(tree, "a.b"),
        draws(tree, "ab"),
        draws(tree.spawn("a"), "a"),
        draws(tree.spawn("a"), "b"),
        draws(tree.spawn("b"), "a"),
        draws(tree.spawn("a").spawn("b"), "a"),
        draws(Generators(6), "a"),
        draws(Generators(51), "a"),
        tree.numpy("a").random(8).tolist(),
        tree.spawn("a").numpy("a").random(8).tolist(),
    ]
    assert len({tuple(sample) for sample in samples}) == len(samples)


def test_streams_are_uncorrelated():
    # 40 streams of 4,000: the 780 correlations have a standard deviation of 1/sqrt(4000) = 0.0158,
    # so the largest should lie near 3.2 of them; 5 would come by chance once in 2,000 runs.
    tree = Generators(11)
    half = [torch.randn(4000, generator=tree.stream(f"s{i}")).double() for i in range(20)]
    half += [torch.from_numpy(tree.numpy(f"s{i}").standard_normal(4000)) for i in range(20)]
    correlation = torch.corrcoef(torch.stack(half)).fill_diagonal_(0.0)
    assert correlation.abs().max() < 5 / 4000**0.5
    assert abs(correlation.sum().item() / 1560) < 5 / (4000 * 780) ** 0.5


def used(seed: int = 9) -> Generators:
    generators = Generators(seed)
    draws(generators, "a", 3)
    torch.randn(5, generator=generators.stream("b"))  # an odd count leaves half a pair behind
    generators.numpy("n").random(3)
    generators.numpy("n").integers(0, 9, dtype=np.uint32)  # leaves half a word behind
    draws(generators.spawn("member.3"), "a", 7)
    generators.spawn("member.3").numpy("deep").random()
    return generators


def continued(generators: Generators) -> list[list[float]]:
    member = generators.spawn("member.3")
    return [
        draws(generators, "a"),
        torch.randn(6, generator=generators.stream("b")).tolist(),
        generators.numpy("n").integers(0, 9, 5, dtype=np.uint32).tolist(),
        generators.numpy("n").random(5).tolist(),
        draws(member, "a"),
        member.numpy("deep").random(3).tolist(),
        draws(generators, "late"),
        generators.numpy("late").random(3).tolist(),
    ]


def test_a_restored_tree_continues_bit_for_bit():
    original, resumed = used(), Generators(9)
    state = {name: tensor.clone() for name, tensor in original.state().items()}
    resumed.restore(state)
    assert continued(resumed) == continued(original)


def test_restoring_moves_the_streams_that_callers_hold():
    generators = used()
    held, held_numpy, late = generators.stream("a"), generators.numpy("n"), None
    state = generators.state()
    first = continued(generators)
    late = generators.stream("late")
    generators.restore(state)
    assert generators.stream("a") is held
    assert generators.numpy("n") is held_numpy
    assert generators.stream("late") is late
    assert continued(generators) == first


def test_a_state_is_flat_bytes_and_a_copy():
    generators = used()
    state = generators.state()
    assert {(tensor.dtype, tensor.ndim) for tensor in state.values()} == {(torch.uint8, 1)}
    assert list(state) == [
        "identity",
        "torch:a",
        "torch:b",
        "numpy:n",
        "member.3/identity",
        "member.3/torch:a",
        "member.3/numpy:deep",
    ]
    assert bytes(state["identity"].tolist()) == b"stormsail.generators.1 cpu 9"
    assert len(state["numpy:n"]) == 37
    before = state["torch:a"].clone()
    draws(generators, "a")
    assert torch.equal(state["torch:a"], before)


def test_global_state_is_never_touched():
    torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
    generators = used()
    continued(generators)
    Generators(9).restore(generators.state())
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    numpy_after = np.random.get_state()  # noqa: NPY002
    assert numpy_after[0] == numpy_before[0]
    assert np.array_equal(numpy_after[1], numpy_before[1])
    assert numpy_after[2:] == numpy_before[2:]


@pytest.mark.refusal
def test_a_state_of_another_seed_is_refused():
    with pytest.raises(ArtifactError) as caught:
        Generators(8).restore(used(9).state())
    assert str(caught.value) == (
        "the state must belong to `stormsail.generators.1 cpu 8`; "
        "found `stormsail.generators.1 cpu 9`. Resume with the seed and the kind of device "
        "that the run began with. [generator-mismatch]"
    )


@pytest.mark.refusal
def test_a_state_of_another_kind_of_device_is_refused():
    state = used(9).state()
    state["identity"] = torch.tensor(list(b"stormsail.generators.1 cuda 9"), dtype=torch.uint8)
    with pytest.raises(ArtifactError) as caught:
        Generators(9).restore(state)
    assert caught.value.code == "generator-mismatch"
    assert caught.value.found == "`stormsail.generators.1 cuda 9`"


def swap(first: str, second: str):
    return lambda state: {**state, first: state[second], second: state[first]}


def put(name: str, tensor: torch.Tensor):
    return lambda state: {**state, name: tensor}


BYTES = torch.zeros(37, dtype=torch.uint8)


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("damage", "key", "found"),
    [
        (swap("torch:a", "torch:b"), "torch:a", "the state of another stream"),
        (put("torch:a", BYTES), "torch:a", None),
        (put("torch:a", torch.zeros(5056)), "torch:a", "torch.float32 of shape (5056,)"),
        (put("torch:a", BYTES[None]), "torch:a", "torch.uint8 of shape (1, 37)"),
        (put("torch:a", torch.full((5056,), 255, dtype=torch.uint8)), "torch:a", None),
        (put("numpy:n", BYTES), "numpy:n", "the state of another stream"),
        (put("numpy:n", BYTES[:36]), "numpy:n", "36 bytes instead of 37"),
        (put("numpy:n", BYTES + 2), "numpy:n", "the flag 2"),
        (put("cuda:n", BYTES), "cuda:n", "an entry of that name"),
        (put("torch:A b", BYTES), "torch:A b", "an entry of that name"),
        (put("../torch:a", BYTES), "../torch:a", "an entry of that name"),
        (lambda s: {k: v for k, v in s.items() if k != "identity"}, "identity", "nothing"),
        (
            put("a/" * 3000 + "identity", BYTES),
            "a/" * 38 + "a...",
            "an entry of that name",
        ),
        (put("a/" * 33 + "identity", BYTES), "a/" * 33 + "identity", "an entry of that name"),
        (put(5, BYTES), "5", "an entry of that name"),
        (put("torch:a", [1, 2]), "torch:a", "no dense tensor with numbers"),
        (put("torch:a", BYTES.to("meta")), "torch:a", "no dense tensor with numbers"),
        (put("torch:a", BYTES.to_sparse()), "torch:a", "no dense tensor with numbers"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage, key, found):
    generators = used()
    before = generators.state()
    with pytest.raises(ArtifactError) as caught:
        generators.restore(damage(before))
    assert caught.value.code == "generator-state"
    assert caught.value.wrong == f"the entry `{key}` of a generator state must be as it was saved"
    assert found is None or caught.value.found == found
    after = generators.state()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.refusal
@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "7"])
def test_a_seed_outside_its_range_is_refused(seed):
    with pytest.raises(RangeError) as caught:
        Generators(seed)
    assert str(caught.value) == (
        f"`seed` must be a whole number of at least 0 and below 2**63; found {seed!r}. "
        "Pass for example 0. [out-of-range]"
    )


@pytest.mark.refusal
@pytest.mark.parametrize("name", [5, None, "", "A", "a b", "a/b", "a:b", ".a", "a.", "a\n", "é"])
@pytest.mark.parametrize("kind", ["stream", "numpy", "spawn"])
def test_a_name_of_another_form_is_refused(kind, name):
    with pytest.raises(ArgumentError) as caught:
        getattr(Generators(1), kind)(name)
    assert str(caught.value) == (
        f"a stream's name must be lower-case words joined by points; found `{name}`. "
        "Write for example `rollout.actions`. [name-form]"
    )


@pytest.mark.refusal
def test_a_tree_is_as_deep_as_its_state_can_be_read():
    tree = leaf = Generators(1)
    for _ in range(32):
        leaf = leaf.spawn("a")
    draws(leaf, "x")
    resumed = Generators(1)
    resumed.restore(tree.state())
    assert set(resumed.state()) == set(tree.state())
    with pytest.raises(RangeError) as caught:
        leaf.spawn("b")
    assert str(caught.value) == (
        "a tree of streams must have at most 32 levels; found the sub-tree `b` below that. "
        "Give the streams longer names instead, such as `member.3.actions`. [out-of-range]"
    )


@pytest.mark.gpu
def test_a_restored_stream_continues_on_the_device():
    original, resumed = Generators(4, "cuda"), Generators(4, "cuda")
    torch.rand(10, device="cuda", generator=original.stream("a"))
    resumed.restore(original.state())
    expected = torch.rand(10, device="cuda", generator=original.stream("a"))
    actual = torch.rand(10, device="cuda", generator=resumed.stream("a"))
    assert torch.equal(actual, expected)
