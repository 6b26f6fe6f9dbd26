"""Every Python block of docs/python.md runs, one after the other, in an empty folder."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "python.md"


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - a page of our own
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == [
        "cartpole",
        "corridor",
        "market",
        "pendulum",
    ]
