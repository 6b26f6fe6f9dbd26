"""Lineage of a run: what was derived when it began, which agent it began from, how it grew.

It lies in `lineage.json` beside `config.toml`. Where the two disagree, after a kill between their
replacements, the lineage counts: it is written first. The identity of a run, and with it its key in
the trial ledger, is that of the configuration it was begun with, so an extension changes neither.
"""

from typing import Any, Literal

from stormsail.algorithms.config import TrainConfig, Whole
from stormsail.algorithms.update.schedules import Extension, History
from stormsail.core.config import Config
from stormsail.core.errors import ConfigError
from stormsail.core.files.documents import JsonValue

RATES = ("ppo.learning_rate", "ppo.learning_rate_final")
"""Settings that an extension may change beside the budget."""

TOTAL = "ppo.total_steps"


class Source(Config):
    """Agent that a run began from."""

    agent: str
    """SHA-256 of its artifact, or of the checkpoint it came from."""
    name: str
    """Last part of its path, for readers."""
    optimizer: Literal["fresh", "kept"] = "fresh"
    """Whether the run began with the state of its optimizer."""
    steps: Whole | None = None
    """Environment steps it was trained for; None where its artifact does not say."""
    settings: str | None = None
    """Hash of the settings it was trained with; None where its artifact does not say."""

    def record(self) -> dict[str, JsonValue]:
        """Return it as plain data, with the names of the trial ledger."""
        fields: dict[str, JsonValue] = self.model_dump(mode="json")
        fields["config_hash"] = fields.pop("settings")
        return fields


class Copy(Config):
    """A copy of another member of a population, with new values of the searched settings."""

    round: Whole
    """Round of the population that it came before."""
    member: Whole
    """Number of the member that was copied."""
    digest: str
    """Of that member's checkpoint."""
    steps: Whole
    """Environment steps of that checkpoint."""
    optimizer: Literal["reset", "copy"]
    """Whether the optimizer began anew or with that member's state."""
    old: dict[str, bool | int | float | str]
    """Values before, by path."""
    new: dict[str, bool | int | float | str]
    """Values from then on."""
    applied: dict[str, bool | int | float | str]
    """Values as the learner used them, read back from it."""


class Lineage(Config):
    """What `lineage.json` holds."""

    derived: tuple[str, ...] = ()
    """Settings that were left open and derived."""
    source: Source | None = None
    """Agent that the run began from; None for random weights."""
    ancestors: tuple[dict[str, Any], ...] = ()
    """Stages of that agent's own lineage."""
    extensions: tuple[Extension, ...] = ()
    """Extensions of its budget, in order."""
    copies: tuple[Copy, ...] = ()
    """Copies of other members of its population, in order."""

    def history(self) -> History:
        """Return what the learner's schedules depend on."""
        return History(self.extensions, frozenset(self.derived), self.source is not None)

    def looks(self) -> int:
        """Return how often the run went on after its result was known: extended, or copied over."""
        return sum(extension.finished for extension in self.extensions) + len(self.copies)

    def searched(self) -> tuple[str, ...]:
        """Return the paths of the settings that copies have changed."""
        return tuple({path: None for copy in self.copies for path in copy.new})

    def current(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration with the last extension and the last copy in force."""
        changes: dict[str, object] = {}
        for copy in self.copies:
            changes |= copy.new
        for extension in self.extensions:
            changes[TOTAL] = extension.new_total
            if extension.new_rates is not None:
                changes |= dict(zip(RATES, extension.new_rates, strict=True))
        return config.replace(**changes) if changes else config

    def begun(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration that the run was begun with."""
        changes: dict[str, object] = {}
        for extension in reversed(self.extensions):
            changes[TOTAL] = extension.old_total
            if extension.old_rates is not None:
                changes |= dict(zip(RATES, extension.old_rates, strict=True))
        for copy in reversed(self.copies):
            changes |= copy.old
        return config.replace(**changes) if changes else config

    def extended(self, config: TrainConfig, wish: "Wish", *, steps: int) -> "Lineage":
        """Return the lineage with one more extension, or itself where it has that one already.

        Args:
            config: of the run, in force.
            wish: what is to change.
            steps: of the run so far.

        Raises:
            ConfigError: if the new budget is not larger than what was done and planned.
        """
        old, new = config.ppo.total_steps, wish.total
        if new == old and (steps < old or self.extensions):  # planned already
            if wish.rates is not None:
                raise _other_rates(config, wish)
            return self
        if new <= steps or new < old:
            raise _too_small(new, steps, old)
        rates = (config.ppo.learning_rate, config.ppo.learning_rate_final)
        extension = Extension(
            steps=steps,
            old_total=old,
            new_total=new,
            finished=steps >= old,
            old_rates=None if wish.rates is None else rates,
            new_rates=wish.rates,
        )
        return self.replace(extensions=(*self.extensions, extension))

    def stages(self, steps: int, config_hash: JsonValue) -> tuple[dict[str, JsonValue], ...]:
        """Return the lineage of an agent of this run after that many steps, oldest stage first."""
        first: list[dict[str, JsonValue]] = list(self.ancestors)
        if self.source is not None:
            first.append({"stage": "started-from", **self.source.record()})
        grown: list[dict[str, JsonValue]] = [
            {"stage": "extended", **extension.model_dump(mode="json")}
            for extension in self.extensions
            if extension.steps <= steps
        ]
        copied: list[dict[str, JsonValue]] = [
            {"stage": "copied", **copy.model_dump(mode="json")}
            for copy in self.copies
            if copy.steps <= steps
        ]
        return (
            *first,
            *copied,
            *grown,
            {"stage": "trained", "config_hash": config_hash, "steps": steps},
        )


class Wish(Config):
    """An extension as the caller gives it."""

    total: Whole
    """The new `ppo.total_steps`."""
    rates: tuple[float, float] | None = None
    """First and last learning rate of the extension; None keeps the line as it is."""


def _too_small(total: int, steps: int, old: int) -> ConfigError:
    return ConfigError(
        "config-inconsistent",
        wrong=f"a run can only be extended beyond the {steps} steps that it did and the {old} of "
        f"its `{TOTAL}`",
        found=f"an extension to {total} steps",
        remedy="Name a larger number, or leave the extension out to finish the run as planned.",
    )


def _other_rates(config: TrainConfig, wish: Wish) -> ConfigError:
    return ConfigError(
        "config-inconsistent",
        wrong=f"{RATES[0]} and {RATES[1]} must stay {config.ppo.learning_rate:g} and "
        f"{config.ppo.learning_rate_final:g} on the way to the {wish.total} steps that the run "
        "has planned already",
        found=" and ".join(f"{rate:g}" for rate in wish.rates or ()),
        remedy="Give the rates in force to continue, or new ones together with a larger number of "
        "steps.",
    )
