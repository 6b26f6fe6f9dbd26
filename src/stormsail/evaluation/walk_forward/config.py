"""Settings of a walk-forward validation: folds, seeds, tests, and the rules of the verdict."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from stormsail.core.config import Config
from stormsail.evaluation.engine.config import BacktestConfig

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


_CEILINGS = ("superiority_p", "clairvoyant_share", "best_bars_share", "conditional_capital")
"""Rules that a larger number makes laxer; a smaller one does the others."""


class VerdictRules(Config):
    """What a promotion takes. Laxer numbers make a promotion worth less, not a strategy better."""

    deflated_sharpe: Probability = 0.95
    """Least probability that the true Sharpe ratio is above 0 after all that was tried."""

    superiority_p: Probability = 0.05
    """Largest p-value of "no better, at equal risk, than one of the simple baselines"."""

    earning_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """More than this share of the folds, and of the seeds, must have earned something."""

    cost_margin: Annotated[float, Field(ge=1.0)] = 2.0
    """The cost that breaks even must be at least this many times the cost that was charged, or the
    floor below, whichever is more."""

    clairvoyant_share: Probability = 0.5
    """Largest share of the log growth of somebody who knows every bar: more looks like a leak."""

    losing_year: Probability = 1e-6
    """Least probability of a year with a loss, read off the lower end of the Sharpe ratio's
    interval: below it (an annual Sharpe ratio above 4.75 for sure) costs or fills are missing."""

    spot_floor_bp: Annotated[float, Field(ge=0.0)] = 2.0
    """What a fill on a spot venue costs at least, all in, in basis points of the notional."""

    perpetual_floor_bp: Annotated[float, Field(ge=0.0)] = 1.5
    """The same on a venue of perpetuals."""

    best_bars_share: Annotated[float, Field(gt=0.0)] = 0.5
    """Largest share of the log growth that the five best bars may have earned."""

    conditional_capital: Probability = 0.25
    """Largest share of the capital that a promotion with an open condition may trade."""

    def laxer(self) -> list[str]:
        """Return the thresholds that ask for less than their defaults, in words."""
        plain, words = VerdictRules(), []
        for name in VerdictRules.model_fields:
            own, usual = getattr(self, name), getattr(plain, name)
            if own > usual if name in _CEILINGS else own < usual:
                words.append(f"`rules.{name}` is {own:g} instead of {usual:g}")
        return words

    def cost_floor_bp(self, symbols: Sequence[str]) -> float:
        """Return the floor of the venue that these symbols, written as ccxt does, trade on."""
        perpetual = all(":" in symbol for symbol in symbols)
        return self.perpetual_floor_bp if perpetual else self.spot_floor_bp


class Combinatorial(Config):
    """Combinatorial purged cross-validation beside the walk forward, without a vote."""

    groups: Annotated[int, Field(ge=3, le=16)] = 6
    """Groups of bars that follow one another."""

    tested: Annotated[int, Field(ge=1)] = 2
    """Groups that each split trades; it learns from the others."""

    @model_validator(mode="after")
    def _fewer(self) -> Self:
        if self.tested >= self.groups:
            raise ValueError(
                f"`tested` must be below `groups`, not {self.tested}: something must "
                "be left to learn from"
            )
        return self


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

    combinatorial: Combinatorial | None = None
    """Train and trade several paths through the same bars as well, and show the distribution of
    their Sharpe ratios; None does not. 6 groups of which 2 are tested take 15 trainings a seed."""

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
