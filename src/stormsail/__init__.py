"""stormsail: trading agents that know their own tail risk.

`import stormsail as ss` is the front door: `ss.train`, `ss.Agent`, `ss.backtest`, `ss.validate`,
`ss.report`, `ss.load_bars`, `ss.make_market` (docs/python.md). Names are imported on first use
(PEP 562): the import itself loads neither torch nor pandas.

Layers, from the bottom: `core` (words), `functional` (formulas), `modules`, `optim`, `market` and
`monitors` (weights, steps, bars, verdicts), `evaluation` (judging), `algorithms` and `execution`
(order), `api` (front door in Python), `cli` (verbs). A file imports from lower layers and from its
own package only.
"""

from typing import TYPE_CHECKING

from stormsail.core.lazy import lazy_exports

if TYPE_CHECKING:
    from stormsail import functional, optim
    from stormsail.algorithms.callbacks import (
        Callback,
        Checkpoint,
        Evaluated,
        Progress,
        Stop,
        callback,
    )
    from stormsail.algorithms.config import TrainConfig
    from stormsail.algorithms.run.evaluate import Evaluation
    from stormsail.api.agent import Agent, ArrayDecision
    from stormsail.api.data import load_bars, make_market
    from stormsail.api.judging import SealedBarsWarning, backtest, report, validate
    from stormsail.api.training import Run, train
    from stormsail.core.errors import StormsailError
    from stormsail.evaluation.engine.config import BacktestConfig
    from stormsail.evaluation.engine.result import Backtest
    from stormsail.evaluation.walk_forward.config import ValidationConfig
    from stormsail.evaluation.walk_forward.run import Validation
    from stormsail.market.bars import Bars
    from stormsail.market.features.registry import feature
    from stormsail.market.panel import Panel
    from stormsail.market.rewards.registry import StepRecord, reward
    from stormsail.market.simulator.config import MarketConfig
    from stormsail.market.synthetic.own import world
    from stormsail.modules.agent import Decision
    from stormsail.modules.encoders import network
    from stormsail.tasks.registry import task

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "ArrayDecision",
    "Backtest",
    "BacktestConfig",
    "Bars",
    "Callback",
    "Checkpoint",
    "Decision",
    "Evaluated",
    "Evaluation",
    "MarketConfig",
    "Panel",
    "Progress",
    "Run",
    "SealedBarsWarning",
    "StepRecord",
    "Stop",
    "StormsailError",
    "TrainConfig",
    "Validation",
    "ValidationConfig",
    "backtest",
    "callback",
    "feature",
    "functional",
    "load_bars",
    "make_market",
    "network",
    "optim",
    "report",
    "reward",
    "task",
    "train",
    "validate",
    "world",
]

_EXPORTS = {
    "algorithms.callbacks": ("Callback", "Checkpoint", "Evaluated", "Progress", "Stop", "callback"),
    "algorithms.config": ("TrainConfig",),
    "algorithms.run.evaluate": ("Evaluation",),
    "api.agent": ("Agent", "ArrayDecision"),
    "api.data": ("load_bars", "make_market"),
    "api.judging": ("SealedBarsWarning", "backtest", "report", "validate"),
    "api.training": ("Run", "train"),
    "core.errors": ("StormsailError",),
    "evaluation.engine.config": ("BacktestConfig",),
    "evaluation.engine.result": ("Backtest",),
    "evaluation.walk_forward.config": ("ValidationConfig",),
    "evaluation.walk_forward.run": ("Validation",),
    "market.bars": ("Bars",),
    "market.features.registry": ("feature",),
    "market.panel": ("Panel",),
    "market.rewards.registry": ("StepRecord", "reward"),
    "market.simulator.config": ("MarketConfig",),
    "market.synthetic.own": ("world",),
    "modules.agent": ("Decision",),
    "modules.encoders": ("network",),
    "tasks.registry": ("task",),
}
"""Public names by the module that holds them; `TYPE_CHECKING` above and `__all__` name them too."""

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, ("functional", "optim"))
