"""When the weight of the risk advantage acts: only behind critics that explain something."""

from stormsail.algorithms.config import RiskConfig
from stormsail.core.config import Config


class GateState(Config):
    """What a resumed gate needs."""

    is_open: bool
    """Whether the weight acts."""
    updates: int
    """For how many updates in a row it has."""


class RiskGate:
    """Opens at an explained variance, shuts below it by a margin, and grows the weight in between.

    An explained variance that is unknown neither opens nor shuts it, and nothing does while there
    are too few outcomes or only critics learn. The constraint does not pass
    through here: in a market whose returns cannot be foretold a limit would never hold.
    """

    def __init__(self, config: RiskConfig) -> None:
        self.config = config
        self.is_open = False
        self.updates = 0

    def share(self, explained_variance: float) -> float:
        """Take the critics' quality in an update in; return the share of the weight that acts."""
        config = self.config
        if explained_variance >= config.cvar_activation_threshold:
            self.is_open = True
        elif (
            explained_variance
            < config.cvar_activation_threshold - config.cvar_activation_hysteresis
        ):
            self.is_open = False
        self.updates = self.updates + 1 if self.is_open else 0
        return self.standing

    @property
    def standing(self) -> float:
        """The share of the weight that acts as things stand."""
        if not self.is_open:
            return 0.0
        ramp = self.config.cvar_ramp_updates
        return 1.0 if ramp == 0 else min(1.0, self.updates / ramp)

    def state(self) -> GateState:
        """Return what a resumed run needs."""
        return GateState(is_open=self.is_open, updates=self.updates)

    def restore(self, state: GateState) -> None:
        """Take up where another gate stood."""
        self.is_open, self.updates = state.is_open, state.updates
