"""A synthetic world on disk: bars, funding and signals in a store."""

from pathlib import Path

from stormsail.market.store import Store
from stormsail.market.synthetic.generate import World


def write_world(store: Store, world: World) -> list[Path]:
    """Write bars, funding and signals of every symbol; return the files.

    What an earlier world left beside a symbol and this one does not have is removed: its leak must
    not stand beside other bars.
    """
    written = []
    for bars in world.bars:
        written.append(store.write(bars))
        if bars.symbol in world.funding:
            written.append(store.write_funding(world.funding[bars.symbol]))
        else:
            store.remove_funding(bars.symbol)
        if world.features is not None:
            written.append(store.write_signals(bars, world.features[bars.symbol]))
        else:
            store.remove_signals(bars.symbol, bars.interval)
    return written
