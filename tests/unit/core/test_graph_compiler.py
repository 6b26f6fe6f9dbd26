"""The one graph compiler: loaded only when something is compiled, refused in words without it."""

import subprocess
import sys

import pytest
import torch

from stormsail.core.errors import ConfigError
from stormsail.core.graph_compiler import compile_graph


def test_the_compiler_is_not_loaded_by_those_who_may_compile():
    code = (
        "import sys, stormsail.market.simulator, stormsail.optim.pipeline;"
        "sys.exit('torch._inductor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.refusal
def test_without_a_compiler_the_error_says_what_to_do(monkeypatch):
    def fail(*_):
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
