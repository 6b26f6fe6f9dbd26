"""The one graph compiler: loaded only when something is compiled, refused in words without it."""

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stormsail.core.errors import ConfigError
from stormsail.core.machine_code import graph_compiler
from stormsail.core.machine_code.graph_compiler import compile_graph, compile_in_place, is_traced

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def test_the_compiler_is_not_loaded_by_those_who_may_compile():
    code = (
        "import sys, stormsail.market.simulator, stormsail.optim.pipeline;"
        "sys.exit('torch._inductor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.refusal
def test_without_a_compiler_the_error_says_what_to_do(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no g++\nmore")

    monkeypatch.setattr(torch._inductor, "compile", fail)
    example = torch.zeros(3)
    with pytest.raises(ConfigError) as caught:
        compile_graph(lambda x: [x.add_(1.0)], [example], instead="do not compile")
    assert str(caught.value) == (
        "a compiled step needs a working compiler: C++ for a CPU, Triton for a GPU; "
        "found RuntimeError: no g++. Install one, or do not compile. [missing-extra]"
    )
    assert torch.equal(example, torch.zeros(3)), "examples are left as they are"


def reading(weight, source):
    """Return a function that draws twice, reads a weight, and takes a gradient."""

    def run(x):
        noise = torch.empty_like(x).uniform_(generator=source)
        noise = noise + torch.rand(3, generator=source)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            loss = ((leaf + noise) * weight).square().sum()
            (slope,) = torch.autograd.grad(loss, [leaf])
        return [noise, slope, is_traced() * torch.ones(())]

    return run


def held_and_drawn(run, weight, source, example):
    """Hold that calls read a weight anew and draw what eager calls would."""
    other = torch.Generator().manual_seed(9)
    assert torch.equal(source.get_state(), other.get_state()), "nothing is drawn to compile"
    assert not is_traced()
    for value in (1.0, 3.0):
        weight.fill_(value)
        x = torch.tensor([0.5, -1.0, 2.0])
        noise, slope, _ = run(x)
        first = torch.empty(3).uniform_(generator=other)
        wanted = first + torch.rand(3, generator=other)
        assert torch.equal(noise, wanted)
        # d/dx of (w (x + n))^2 is 2 w^2 (x + n)
        torch.testing.assert_close(slope, 2.0 * value**2 * (x + wanted))
    assert torch.equal(source.get_state(), other.get_state())
    assert torch.equal(example, torch.zeros(3)), "examples are left as they are"


def test_what_stays_in_place_is_read_anew_and_draws_are_those_of_eager_calls(monkeypatch):
    monkeypatch.setattr(graph_compiler, "_compiled", lambda graph, *_: graph)
    weight, source = torch.full((1,), 7.0), torch.Generator().manual_seed(9)
    example = torch.zeros(3)
    run = compile_in_place(reading(weight, source), [example], instead="do not compile")
    held_and_drawn(run, weight, source, example)
    assert run(torch.zeros(3))[2] == 1.0, "it was recorded as a traced function"


@pytest.mark.skipif(not COMPILER, reason="no C++ compiler")
@pytest.mark.filterwarnings("default")  # torch deprecates functions that its own compiler uses
def test_machine_code_reads_and_draws_the_same():
    weight, source = torch.full((1,), 7.0), torch.Generator().manual_seed(9)
    example = torch.zeros(3)
    run = compile_in_place(reading(weight, source), [example], instead="do not compile")
    held_and_drawn(run, weight, source, example)


@pytest.mark.parametrize("kind", [compile_graph, compile_in_place])
def test_threads_compile_one_after_the_other(kind, monkeypatch):
    """To record, torch replaces functions of the process: two at a time end in an error of its own.

    Each waits within its recording for the others, for a while: none may come.
    """
    monkeypatch.setattr(graph_compiler, "_compiled", lambda graph, *_: graph)
    inside, others, most = [], threading.Event(), []

    def run(x):
        inside.append(x)
        most.append(len(inside))
        if len(inside) > 1:
            others.set()
        others.wait(0.1)
        inside.pop()
        return [x + 1.0]

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: kind(run, [torch.zeros(2)], instead="wait"), range(3)))
    assert max(most) == 1
    assert all(each(torch.ones(2))[0].tolist() == [2.0, 2.0] for each in made)


def test_a_view_of_what_stays_in_place_is_made_once(monkeypatch):
    graphs = []
    monkeypatch.setattr(
        graph_compiler, "_compiled", lambda graph, *_: graphs.append(graph) or graph
    )
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    run = compile_in_place(lambda x: [x @ weight.t()], [torch.zeros(1, 2)], instead="")
    weight[0, 1] = 5.0
    assert run(torch.tensor([[1.0, 1.0]]))[0].tolist() == [[6.0, 7.0]]
    assert [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"] == [
        "aten.mm.default"
    ]


@pytest.mark.refusal
@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda p, stream: torch.multinomial(p, 1, generator=stream), "aten::multinomial"),
        (lambda p, stream: torch.bernoulli(p, generator=stream), "aten::bernoulli"),
        (lambda p, stream: torch.empty(3).bernoulli_(p, generator=stream), "aten::bernoulli_"),
    ],
)
def test_a_draw_from_a_computed_distribution_is_refused(draw, name):
    """Its numbers would be those of the distribution that it was compiled with."""
    stream = torch.Generator().manual_seed(0)
    with pytest.raises(ConfigError) as caught:
        compile_in_place(lambda x: [draw(x.softmax(-1), stream)], [torch.zeros(3)], instead="wait")
    assert str(caught.value) == (
        "what is compiled must draw numbers whose distribution is fixed; found "
        f"{name} of a computed tensor. Draw uniform or normal numbers and transform them, or do "
        "not compile it. [config-inconsistent]"
    )
