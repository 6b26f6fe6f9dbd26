"""Request weights, order counts and bans of the loopback exchange, as Binance counts them."""

from collections import deque

from stormsail.execution.loopback.orders import Dialect

MINUTE_MS, TEN_SECONDS_MS = 60_000, 10_000
WEIGHT = {"spot": 6000, "perp": 2400}
ORDERS = {"spot": 100, "perp": 300}
VIOLATIONS_BEFORE_BAN = 3
BAN_MS = 120_000
_BODY = '{"code":-1003,"msg":"Too many requests; current limit is reached."}'

Over = tuple[int, str, dict[str, str]]


class Limits:
    """What one address has used of one dialect's limits.

    Attributes:
        used: weight in this minute.
        peak: most weight that any minute has seen.
        during_ban: requests that arrived while the address was banned.
        refused: requests that were over a limit.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.weight_limit, self.order_limit = WEIGHT[dialect], ORDERS[dialect]
        self.used = self.peak = self.during_ban = self.refused = 0
        self.banned_until = 0
        self._minute = -1
        self._violations = 0
        self._orders: deque[int] = deque()

    def check_ban(self, now_ms: int) -> Over | None:
        """Return the refusal of a request during a ban."""
        if now_ms >= self.banned_until:
            return None
        self.during_ban += 1
        self.banned_until += BAN_MS  # asking prolongs it
        return self.banned(now_ms)

    def banned(self, now_ms: int) -> Over:
        """Return what a banned address is told."""
        wait = str((self.banned_until - now_ms + 999) // 1000)
        words = f"Way too much request weight used; IP banned until {self.banned_until}."
        return 418, f'{{"code":-1003,"msg":"{words}"}}', {"Retry-After": wait}

    def check(self, weight: int, now_ms: int, *, order: bool) -> Over | None:
        """Count a request; return its refusal if it is over a limit."""
        banned = self.check_ban(now_ms)
        if banned is not None:
            return banned
        if now_ms // MINUTE_MS != self._minute:
            self._minute, self.used, self._violations = now_ms // MINUTE_MS, 0, 0
        self.used += weight
        self.peak = max(self.peak, self.used)
        if order:
            self._orders.append(now_ms)
            while self._orders[0] <= now_ms - TEN_SECONDS_MS:
                self._orders.popleft()
            if len(self._orders) > self.order_limit:
                self.refused += 1
                return 429, '{"code":-1015,"msg":"Too many new orders."}', {"Retry-After": "10"}
        if self.used <= self.weight_limit:
            return None
        self.refused += 1
        self._violations += 1
        if self._violations >= VIOLATIONS_BEFORE_BAN:
            self.banned_until = now_ms + BAN_MS
        wait = str(60 - now_ms // 1000 % 60)
        return 429, _BODY, {"Retry-After": wait}

    def ban(self, now_ms: int, headers: dict[str, str]) -> None:
        """Ban the address for as long as the headers say, or for two minutes."""
        seconds = headers.get("Retry-After", "")
        length = int(seconds) * 1000 if seconds.isdigit() else BAN_MS
        self.banned_until = max(self.banned_until, now_ms + length)
