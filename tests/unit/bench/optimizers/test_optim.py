"""`stormsail bench optim`: the right network, ratios from one run, and what is printed."""

import json

import pytest
import torch

from stormsail.bench.optimizers import optim as bench
from stormsail.cli.bench.optimizers import optim as command

EAGER = ["AdamW, foreach", "AdamW, fused", "UPGD", "AdaptiveUPGD", "AdaptiveUPGD, guard, VGS, clip"]


def test_the_network_has_two_million_parameters_in_24_tensors():
    params = bench.network("cpu", seed=0)
    # memory: 1024 (64 + 7 · 256) weights and 8 · 1024 biases; heads: (256 + 1) (256 + 5 + 256 + 32)
    assert sum(p.numel() for p in params) == 1024 * 1856 + 8192 + 257 * 549
    assert len(params) == 24
    assert all(p.grad.shape == p.shape for p in params)


def test_ratios_are_to_adamw_of_the_same_run():
    rows = bench.step_times(compiled=False, seconds=0.01, repeats=2, scale=0.02)
    assert [row.way for row in rows] == EAGER
    assert rows[0].ratio == 1.0
    for row in rows:
        assert row.ratio == pytest.approx(row.microseconds / rows[0].microseconds, rel=1e-12)


def test_a_way_that_takes_longer_shows_it(monkeypatch):
    calls = {"fast": 0, "slow": 0}

    def counting(name, work):
        def step():
            calls[name] += 1
            for _ in range(work):
                torch.ones(64).sum()

        return step, None

    def ways(*_, **__):
        yield "AdamW, foreach", lambda: counting("fast", 20)
        yield "slow", lambda: counting("slow", 400)

    monkeypatch.setattr(bench, "ways", ways)
    fast, slow = bench.step_times(seconds=0.2, repeats=10)
    assert fast.ratio == 1.0
    assert 8.0 < slow.ratio < 50.0
    assert calls["fast"] > 4 * calls["slow"]


def test_the_table_and_the_file_hold_every_way(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    out = tmp_path / "figures.json"
    options = {"device": "cpu", "threads": 0, "seconds": 0.01, "scale": 0.02, "seed": 0}
    command(compiled=True, out=out, **options)
    printed = capsys.readouterr().out
    assert "no C++ compiler is found: nothing is compiled\n" in printed
    found = json.loads(out.read_text())
    assert [row["way"] for row in found] == EAGER
    for row in found:
        line = next(one for one in printed.splitlines() if f"│ {row['way']} " in one)
        assert f"{row['ratio']:.2f}" in line


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch deprecates functions that its own compiler uses
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_way_is_captured_on_cuda():
    rows = bench.step_times(device="cuda", seconds=0.1, repeats=2, scale=0.1)
    assert len(rows) == 7
    assert next(row.ratio for row in rows if row.way == "AdamW, fused") == 1.0
