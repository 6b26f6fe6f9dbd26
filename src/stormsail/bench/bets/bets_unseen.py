"""Worlds of bets that were not looked at while the risk control was built.

They are here to judge it: nothing is chosen by them. Each differs in kind from those of `KNOWN`.
"""

from stormsail.bench.bets.bets_worlds import Table, World


def _noisy(event: float, loss: float, up: float, down: float) -> Table:
    rest = (1.0 - event) / 2.0
    return ((event, loss), (rest, down), (rest, up))


_FINE = tuple(k / 32.0 for k in range(65))
"""Levels for the best policy of a continuous action; half the step adds less than 0.1 %."""

UNSEEN: dict[str, World] = {
    world.name: world
    for world in (
        # a warning in two steps: clouds pay as calm days do, storms follow them
        World(
            "storm", -25.0, 24, (0.0, 1.0, 2.0, 3.0),
            (_noisy(0.0005, -40.0, 3.0, -2.0), _noisy(0.002, -40.0, 3.0, -2.0),
             _noisy(0.03, -40.0, 4.0, -2.0)),
            moves=((0.94, 0.06, 0.0), (0.3, 0.4, 0.3), (0.4, 0.2, 0.4)), warns=True,
        ),
        # path dependence: a change of the level costs, and regimes last
        World(
            "churn", -12.0, 12, (0.0, 1.0, 2.0),
            (((0.004, -15.0), (0.596, 2.0), (0.4, -1.0)),
             ((0.02, -15.0), (0.48, 2.0), (0.5, -1.0))),
            moves=((0.85, 0.15), (0.25, 0.75)), change_cost=0.5,
        ),
        # path dependence: shares of the wealth, and an end by ruin
        World(
            "compound", -5.0, 6, (0.0, 0.25, 0.5, 0.75),
            (((0.03, -1.0), (0.42, -0.2), (0.55, 0.4)),), wealth=10.0, ruin=-8.0,
        ),
        # mixed: all or nothing, and losses likelier than alpha
        World("double-or-nothing", -2.0, 2, (0.0, 5.0), (((0.08, -1.0), (0.92, 0.5)),)),
        # steep: a unit of the limit is worth more than two of the mean
        World(
            "steep", -0.8, 2, (0.0, 1.0, 2.0, 3.0, 4.0),
            (((0.004, -3.0), (0.346, 0.0), (0.65, 1.0)),),
        ),
        # continuous levels
        World(
            "dial", -4.0, 3, _FINE, (((0.02, -6.0), (0.98, 1.0)),), continuous=True,
        ),
        # slack: the boldest policy keeps it
        World(
            "loose", -40.0, 8, (0.0, 1.0, 2.0, 3.0), (_noisy(0.002, -8.0, 3.0, -2.0),), slack=True,
        ),
    )
}  # fmt: skip
"""By name."""
