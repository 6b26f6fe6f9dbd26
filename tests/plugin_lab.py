"""The examples of docs/plugins.md as files, and a training that uses one of each kind."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"

SETTINGS = {
    "seed": 5,
    "task": {
        "data": {
            "world": "my_walk",
            "world_bars": 500,
            "world_symbols": 1,
            "world_parameters": {"weekly": 0.004},
        },
        "market": {
            "episode_bars": 12,
            "reward": "smooth_growth",
            "reward_parameters": {"rate": 0.2},
            "features": [
                {"name": "overnight_gap"},
                {"name": "range_share", "parameters": {"window": 6}},
            ],
        },
    },
    "network": {
        "encoder": "gated",
        "encoder_parameters": {"width": 8},
        "lstm_hidden_size": 5,
        "head_sizes": [6],
    },
    "critic": {"num_quantiles": 5},
    "callbacks": ["enough"],
    "ppo": {"n_steps": 8, "n_envs": 4, "batch_size": 4, "n_epochs": 1, "total_steps": 128},
    "checkpoint": {"every_updates": 1},
    "validation": {"every_updates": 1, "episodes": 3},
    "observation": {"warmup_steps": 0},
}
"""Four updates; the callback of the page stops the run after the second."""


def examples() -> dict[str, str]:
    """Return the files of the page by name."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return {re.match(r"# (\w+\.py)\n", block)[1]: block for block in blocks}


def written(folder: Path) -> list[str]:
    """Write the examples into a folder; return their paths."""
    folder.mkdir(exist_ok=True)
    for name, text in examples().items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in examples()]
