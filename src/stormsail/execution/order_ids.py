"""Client order ids: a function of what the order is, so that a restart names the same order alike.

An id reads `s1-OWNER-EPOCH-HASH`, 33 characters: OWNER is the account, EPOCH the journal, and HASH
all of the key. So one glance at an exchange's list of orders tells ours from
other people's, and ours from those of another journal: a second trader, or a journal that was lost.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Literal

Leg = Literal["target", "stop", "flatten"]
"""What an order is for: the agent's target weight, the protective stop, the way out."""

_FORM = re.compile(r"s1-([a-z2-7]{6})-([a-z2-7]{6})-([a-z2-7]{16})")


@dataclass(frozen=True)
class OrderKey:
    """What makes an order the order that it is.

    Attributes:
        account: the venue's name of the account.
        strategy: digest of the agent.
        epoch: of the journal, see `epoch_of`.
        bar_ms: opening of the bar on whose close it was decided.
        leg: what it is for.
        number: 0 for the first of that leg; a further one is another order, not a repetition.
    """

    account: str
    strategy: str
    epoch: str
    bar_ms: int
    symbol: str
    leg: Leg
    number: int = 0

    @property
    def client_id(self) -> str:
        """The id, at most 36 characters of `a-z 0-9 -`."""
        parts = (self.account, self.strategy, self.epoch, self.bar_ms, self.symbol, self.leg)
        text = "\n".join(map(str, (*parts, self.number)))
        return f"{prefix(self.account)}{self.epoch}-{_short(text, 16)}"


def prefix(account: str) -> str:
    """Return how the ids of this package begin in an account, whatever the agent or the journal."""
    return f"s1-{_short(account, 6)}-"


def epoch_of(*, created_ns: int, host: str, pid: int) -> str:
    """Return the epoch of a new journal: two journals made apart have two."""
    return _short(f"{created_ns}\n{host}\n{pid}", 6)


def epoch_in(client_id: str) -> str | None:
    """Return the epoch in an id of this package, None where it is somebody else's."""
    match = _FORM.fullmatch(client_id)
    return None if match is None else match[2]


def _short(text: str, length: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.b32encode(digest).decode().lower()[:length]
