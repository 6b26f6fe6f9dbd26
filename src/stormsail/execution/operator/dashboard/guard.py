"""Who may ask the dashboard for what: hosts, origins, tokens, lock-out.

Rules of surface E3 (`docs/operating.md`): a page of a stranger in the same browser must not be able
to read or to act (DNS rebinding, cross-site requests), and guessing a token must not be possible.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

from stormsail.core.clock import NANOSECONDS, Clock
from stormsail.core.errors import ConfigError

WRONG_TOKENS = 5
"""Wrong tokens from one address after which it is locked out."""

LOCKED_SECONDS = 60.0


@dataclass(frozen=True)
class Refusal:
    """An HTTP status and the words that go with it."""

    status: int
    text: str


@dataclass
class _Tries:
    wrong: int = 0
    locked_until_ns: int = 0


@dataclass
class Guard:
    """Decides about requests by their headers alone.

    Args:
        token: of the kill button, and of everything where the page is not on this machine alone.
        hosts: allowed values of `Host`, with port.
        scheme: `http` or `https`.
        open_reading: whether reading needs no token.
        clock: for the lock-out.
    """

    token: str = field(repr=False)
    hosts: frozenset[str]
    scheme: str
    open_reading: bool
    clock: Clock
    _tries: dict[str, _Tries] = field(default_factory=dict, repr=False)

    def refusal(
        self, *, method: str, host: str, origin: str | None, bearer: str | None, address: str
    ) -> Refusal | None:
        """Return why a request is refused, or None.

        Host and origin are checked whatever the method is, so that none is forgotten.
        """
        if host.lower() not in self.hosts:
            return Refusal(421, "this address does not serve that host")
        if origin is not None and origin.lower() not in {
            f"{self.scheme}://{h}" for h in self.hosts
        }:
            return Refusal(403, "requests from pages of another origin are refused")
        if method in ("GET", "HEAD") and self.open_reading:
            return None
        return self._token_refusal(bearer, address)

    def _token_refusal(self, bearer: str | None, address: str) -> Refusal | None:
        now = self.clock.monotonic_ns()
        tries = self._tries.setdefault(address, _Tries())
        if now < tries.locked_until_ns:
            return Refusal(429, f"too many wrong tokens; wait {LOCKED_SECONDS:.0f} seconds")
        if bearer is None:
            return Refusal(401, "this needs the token of dashboard.token")
        if hmac.compare_digest(bearer.encode(), self.token.encode()):
            del self._tries[address]
            return None
        tries.wrong += 1
        if tries.wrong >= WRONG_TOKENS:
            self._tries[address] = _Tries(locked_until_ns=now + int(LOCKED_SECONDS * NANOSECONDS))
        return Refusal(401, "the token is wrong")


def is_loopback(address: str) -> bool:
    """Return whether an address to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def allowed_hosts(address: str, port: int, names: Iterable[str] = ()) -> frozenset[str]:
    """Return the values of `Host` that requests to an address may carry."""
    own = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(address) else [address]
    return frozenset(f"{name.lower()}:{port}" for name in (*own, *names))


def require_safe_address(address: str, *, encrypted: bool) -> None:
    """Refuse to listen to other machines without TLS.

    Raises:
        ConfigError: if others could listen in.
    """
    if not is_loopback(address) and not encrypted:
        raise ConfigError(
            "config-inconsistent",
            wrong="a dashboard that other machines can reach must be encrypted",
            found=f"the address {address} without a certificate",
            remedy="Name a certificate and its key, or listen on 127.0.0.1 and use an SSH tunnel.",
        )
