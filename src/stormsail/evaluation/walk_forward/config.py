"""Settings of a walk-forward validation: folds, seeds, tests, and the rules of the verdict."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from stormsail.core.config import Config
from stormsail.evaluation.engine.config import BacktestConfig

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class VerdictRules(Config):
    """What a promotion takes. Laxer numbers make a promotion worth less, not a strategy better."""

    deflated_sharpe: Probability = 0.95
    """Least probability that the true Sharpe ratio is above 0 after all that was tried."""

    superiority_p: Probability = 0.05
    """Largest p-value of "nothing here earns more than buy and hold"."""

    overfitting: Probability = 0.5
    """Largest probability that choosing the best seed chose nothing; asked of two seeds or more."""

    earning_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """More than this share of the folds, and of the seeds, must have earned something."""

    cost_margin: Annotated[float, Field(ge=1.0)] = 2.0
    """The cost that breaks even must be at least this many times the cost that was charged."""


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ValueError(f"must be one or more different whole numbers from 0 on, not {seeds}")
    return seeds


class ValidationConfig(Config):
    """A walk forward with retraining in each fold, judged on bars that no training has seen."""

    folds: Annotated[int, Field(ge=1)] = 5
    """How often the agents are trained anew; each time they trade the bars that follow."""

    seeds: Annotated[tuple[int, ...], AfterValidator(_distinct)] = (0, 1, 2)
    """Seeds of the trainings in each fold. Capital is divided equally among their agents."""

    train_bars: Annotated[int, Field(ge=2)] | None = None
    """Bars that each training sees. None trains on everything so far, from half of the bars on."""

    test_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of the bars, the newest, that is kept apart and not read until it is opened."""

    embargo_bars: Annotated[int, Field(ge=1)] | None = None
    """Bars between training and what is traded; None takes lookback, burn-in and one more."""

    burn_in: Annotated[int, Field(ge=0)] | None = None
    """Bars before the first decision on which a memory is warmed up; None takes the backtest's."""

    alpha: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Share of worst bars that counts as the tail."""

    backtest: BacktestConfig = BacktestConfig()
    """Rules of the passes. Start and end belong to the folds, and accounts are not pooled. Each
    agent decides by the policy it was judged by, unless `greedy` says otherwise; draws of each fold
    and seed are their own, derived from `seed`."""

    baselines: bool = True
    """Trade the baselines; without them nothing says that buy and hold was beaten."""

    costs: bool = True
    """Sweep costs and find the break-even; without it nothing says what costs are borne."""

    stress: bool = True
    """Trade again where things go wrong; the verdict does not depend on it."""

    open_test: bool = False
    """Judge the final test span as well. It can be opened once."""

    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Of resampling and of the self-tests; the trainings have their own."""

    rules: VerdictRules = VerdictRules()
    """What a promotion takes."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        own = self.backtest
        for name in ("start", "end", "pool_bars"):
            if getattr(own, name) is not None:
                raise ValueError(
                    f"`backtest.{name}` must be left out, not {getattr(own, name)}: the folds "
                    "decide what is traded, and each account is its own"
                )
        return self

    @property
    def burn_in_bars(self) -> int:
        """Bars of burn-in, of the validation or else of its backtests."""
        return self.backtest.burn_in if self.burn_in is None else self.burn_in
