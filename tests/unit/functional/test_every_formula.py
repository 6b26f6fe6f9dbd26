"""What every formula must do, whatever it computes."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import cases
import stormsail.functional
from stormsail.core.errors import ShapeError
from stormsail.functional import _checks as check

CASES = cases.build()
by_name = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
SOURCE = Path(stormsail.functional.__file__).parent
# Not arithmetic on tensors: they give plain numbers and have neither a dtype nor a device to keep.
PLAIN = {"midpoints", "tail_weights", "cross_entropy_normaliser", "truncation_count"}
# Statistics that are float64 by definition, whatever comes in; counts and codes are integers.
OWN_DTYPE = {
    "count_nonfinite",
    "explained_variance",
    "explored_choice",
    "least_variance",
    "mean_and_std",
    "moments",
    "outside_support",
    "percentile",
    "percentiles",
    "ranking",
    "ratio_is_clipped",
    "risk_gate",
    "running_moments",
    "tournament_sources",
    "truncation_sources",
    "weighted_std",
}


def public_functions() -> dict[str, Callable[..., object]]:
    functions = {}
    for info in pkgutil.walk_packages([str(SOURCE)], "stormsail.functional."):
        last = info.name.rpartition(".")[2]
        if last.startswith("_") or info.name.startswith("stormsail.functional.kernels"):
            continue
        module = importlib.import_module(info.name)
        for name, thing in vars(module).items():
            own = inspect.isfunction(thing) and thing.__module__ == module.__name__
            alias = own and thing.__name__ != name
            if own and not alias and not name.startswith("_"):
                functions[f"{last}.{name}"] = thing
    return functions


def test_every_formula_has_a_worked_call():
    called = {case.name.split("[")[0] for case in CASES}
    assert called == set(public_functions())


SCALARS = {
    "mean", "std", "new_mean", "new_std", "progress", "n", "count", "limits", "account", "terms",
}  # fmt: skip
"""Positional arguments that are not tensors: moments, counts, and what holds tensors."""


def docstring_problems(function: Callable[..., object]) -> list[str]:
    """Return what the docstring of a formula lacks."""
    text = inspect.getdoc(function) or ""
    source = r"arXiv:|Ours|[Tt]extbook|[Dd]efinition|et al\.|& |Muller|Schulman|scikit|Gymnasium"
    faults = {
        "the first line does not say what is returned": not text.startswith("Return"),
        "no paper, nor `Ours`, nor that it is textbook knowledge": not re.search(source, text),
        "what is refused is not said": (
            "check." in inspect.getsource(function) and "Raises:" not in text
        ),
    }
    return [fault for fault, holds in faults.items() if holds]


def signature_problems(function: Callable[..., object]) -> list[str]:
    """Return the positional arguments that have no shape or type, or are scalars."""
    problems = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            continue
        annotation = str(parameter.annotation)
        if parameter.annotation is parameter.empty:
            problems.append(f"`{parameter.name}` carries neither shape nor type")
        if not ("Tensor" in annotation or "Moments" in annotation or parameter.name in SCALARS):
            problems.append(f"`{parameter.name}` is a scalar and not keyword-only")
    return problems


def test_every_docstring_has_formula_or_reading_source_and_refusals():
    problems = [
        f"{name}: {problem}"
        for name, function in public_functions().items()
        for problem in docstring_problems(function)
    ]
    assert not problems, "\n".join(problems)


def test_every_tensor_has_its_shape_and_scalars_are_keyword_only():
    problems = [
        f"{name}: {problem}"
        for name, function in public_functions().items()
        for problem in signature_problems(function)
    ]
    assert not problems, "\n".join(problems)


def test_the_checks_of_docstring_and_signature_see_what_they_ask_for():
    def poor(x: Tensor, untyped, *, y: float):
        """Compute something."""
        check.in_range(y)  # never called, only read

    def rich(x: Tensor, mean: float, *, y: float):
        """Return something. Textbook.

        Raises:
            ShapeError: if it does not fit.
        """
        check.in_range(y)  # never called, only read

    assert len(docstring_problems(poor)) == 3
    assert signature_problems(poor) == [
        "`untyped` carries neither shape nor type",
        "`untyped` is a scalar and not keyword-only",
    ]
    assert docstring_problems(rich) == signature_problems(rich) == []


def banned_in(source: str) -> list[str]:
    """Return what a pure formula may not contain, as `name:line`."""
    attributes = {"item", "cpu", "numpy", "tolist", "cuda", "manual_seed", "synchronize", "nonzero"}
    names = {"print", "open", "nan_to_num", "rand", "randn", "randint", "Module", "Parameter"}
    banned = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in attributes | names:
            banned.append(f"{node.attr}:{node.lineno}")
        if isinstance(node, ast.Name) and node.id in names:
            banned.append(f"{node.id}:{node.lineno}")
        if isinstance(node, ast.Global | ast.Nonlocal):
            banned.append(f"global:{node.lineno}")
    return banned


def in_every_file(problems_in: Callable[[str], list[object]]) -> str:
    """Return a line for each file of formulas that has problems."""
    problems = {path: problems_in(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    return "\n".join(
        f"{path.relative_to(SOURCE)}: {what}" for path, what in problems.items() if what
    )


def test_formulas_are_pure():
    problems = in_every_file(banned_in)
    assert not problems, problems


def test_the_purity_check_sees_what_it_bans():
    assert banned_in("def f(x):\n    return x.item()") == ["item:2"]
    assert banned_in("import torch\nx = torch.rand(3)") == ["rand:2"]
    assert banned_in("def f():\n    global x\n    print(1)") == ["global:2", "print:3"]


def budget(source: str) -> list[tuple[str, int]]:
    """Return functions whose body, docstring aside, is longer than 40 lines."""
    long = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            if lines > 40:
                long.append((node.name, lines))
    return long


def test_formulas_fit_on_a_screen():
    problems = in_every_file(budget)
    assert not problems, problems


@pytest.mark.unshaped
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads itself
@by_name
def test_it_compiles_without_a_graph_break(case):
    compiled = torch.compile(case.function, fullgraph=True, backend="aot_eager")
    expected = cases.tensors(case.call())
    actual = cases.tensors(compiled(*case.args, **case.options))
    torch._dynamo.reset()
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it loads inductor
@by_name
def test_it_compiles_to_machine_code(case):
    compiled = torch.compile(case.function, fullgraph=True, backend="inductor")
    expected = cases.tensors(case.call())
    actual = cases.tensors(compiled(*case.args, **case.options))
    torch._dynamo.reset()
    torch.testing.assert_close(actual, expected, equal_nan=True)


@by_name
def test_it_never_reads_a_value(case):
    # Fake tensors have shapes but no data: any `.item()`, `bool(tensor)` or data-dependent shape
    # raises, which on a GPU would be a host sync.
    mode = torch._subclasses.FakeTensorMode()

    def fake(value):
        if isinstance(value, Tensor):
            return mode.from_tensor(value)
        if isinstance(value, tuple):
            parts = [fake(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, dict):
            return {key: fake(part) for key, part in value.items()}
        return value

    with mode:
        result = case.function(*fake(case.args), **fake(case.options))
    shapes = [tensor.shape for tensor in cases.tensors(result)]
    assert shapes == [tensor.shape for tensor in cases.tensors(case.call())]


@by_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_keeps_the_dtype(case, dtype):
    if case.function.__name__ in PLAIN | OWN_DTYPE or not cases.tensors(case.args):
        pytest.skip("has a dtype of its own")
    result = case.function(
        *cases.move(case.args, dtype=dtype), **cases.move(case.options, dtype=dtype)
    )
    assert {tensor.dtype for tensor in cases.tensors(result)} == {dtype}


@by_name
def test_float32_agrees_with_float64(case):
    exact = cases.tensors(case.call())
    rounded = cases.tensors(
        case.function(
            *cases.move(case.args, dtype=torch.float32),
            **cases.move(case.options, dtype=torch.float32),
        )
    )
    for low, high in zip(rounded, exact, strict=True):
        torch.testing.assert_close(low.double(), high.double(), rtol=2e-5, atol=2e-5)


@by_name
def test_it_leaves_its_arguments_alone(case):
    before = cases.move(case.args)
    kept = [tensor.clone() for tensor in cases.tensors(before)]
    case.call()
    assert all(map(torch.equal, cases.tensors(case.args), kept))


@by_name
def test_its_gradient_is_the_derivative(case):
    if not case.differentiable:
        for tensor in cases.tensors(case.args):
            assert not tensor.requires_grad
        leaves = [
            arg.clone().requires_grad_()
            if isinstance(arg, Tensor) and arg.is_floating_point()
            else arg
            for arg in case.args
        ]
        for tensor in cases.tensors(case.function(*leaves, **case.options)):
            # what is not meant to be differentiated must not be, or a caller may train it unawares
            assert not tensor.requires_grad or case.function.__name__ in {"fgsm", "pgd_step"}
        return
    inputs = [case.args[index].clone().requires_grad_() for index in case.differentiable]

    def restricted(*leaves):
        args = list(case.args)
        for index, leaf in zip(case.differentiable, leaves, strict=True):
            args[index] = leaf
        return tuple(
            tensor
            for tensor in cases.tensors(case.function(*args, **case.options))
            if tensor.requires_grad
        )

    assert torch.autograd.gradcheck(restricted, inputs, eps=1e-7, atol=1e-6, rtol=1e-5)


def on_device(case: cases.Case) -> dict[str, object]:
    """Return the options with every number as a tensor, as a captured graph would hold it."""
    numbers = {name: value for name, value in case.options.items() if isinstance(value, float)}
    return {
        **case.options,
        **{name: torch.tensor(value).double() for name, value in numbers.items()},
    }


@by_name
def test_its_numbers_may_be_device_tensors(case):
    if case.options.get("kappa") == 0.0:
        pytest.skip("only the number 0 chooses the pinball loss")
    actual = cases.tensors(case.function(*case.args, **on_device(case)))
    torch.testing.assert_close(actual, cases.tensors(case.call()), rtol=1e-7, atol=1e-7)


@by_name
def test_a_number_with_dimensions_is_refused(case):
    for name, value in case.options.items():
        if isinstance(value, float) and name not in {"initial", "final"}:
            with pytest.raises(ShapeError):
                case.function(*case.args, **{**case.options, name: torch.full((2,), value)})


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # identities launch none
@by_name
def test_it_agrees_on_the_gpu_and_is_captured(case):
    args, options = (
        cases.move(case.args, device="cuda"),
        cases.move(case.options, device="cuda"),
    )
    expected = cases.tensors(case.call())
    if case.function.__name__ in PLAIN or not expected:
        pytest.skip("gives plain numbers")
    case.function(*args, **options)  # warm up: lazy initialisation may wait once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        eager = cases.tensors(case.function(*args, **options))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = cases.tensors(case.function(*args, **options))
    graph.replay()
    torch.cuda.synchronize()
    for want, first, again in zip(expected, eager, captured, strict=True):
        torch.testing.assert_close(first.cpu(), want, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert torch.equal(first, again)
