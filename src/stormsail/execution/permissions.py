"""What an API key may do, and whether a trader should be given such a key."""

from stormsail.core.errors import ConfigError
from stormsail.execution.venue import KeyPermissions
from stormsail.market.instruments import Kind

_MOVES_MONEY = {
    "withdraw": "withdrawals",
    "internal_transfer": "internal transfers",
    "universal_transfer": "universal transfers",
}


def check_permissions(permissions: KeyPermissions, kind: Kind) -> tuple[str, ...]:
    """Refuse a key that can move money out of the account, or that cannot trade; return warnings.

    A stolen key without these rights can still trade badly on purpose, so a key that works from
    every address is warned of.

    Args:
        permissions: of the key, as the exchange states them.
        kind: of the markets that are traded.

    Raises:
        ConfigError: `venue-permission`, naming every right that is too much or missing.
    """
    too_many = [name for field, name in _MOVES_MONEY.items() if getattr(permissions, field)]
    if too_many:
        raise ConfigError(
            "venue-permission",
            wrong="a key for trading must not be able to move money out of the account",
            found=f"a key with the right of {', '.join(too_many)}",
            remedy="Make a key without these rights, and delete this one.",
        )
    trades = permissions.futures_trading if kind == "perpetual" else permissions.spot_trading
    missing = [
        name for name, given in (("reading", permissions.read), ("trading", trades)) if not given
    ]
    if missing:
        raise ConfigError(
            "venue-permission",
            wrong=f"a key for {kind} must have the rights of reading and trading",
            found=f"a key without {' and '.join(missing)}",
            remedy="Switch them on for this key at the exchange, and nothing else.",
        )
    warnings = []
    if not permissions.ip_restricted:
        warnings.append("the key works from every address: restrict it to this machine's")
    if permissions.margin_trading:
        warnings.append("the key may borrow on margin, which is not needed here")
    return tuple(warnings)
