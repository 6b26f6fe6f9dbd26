"""Download of bars and funding rates from an exchange into the store."""

from stormsail.market.fetch.bars import FetchResult, Progress, fetch_bars
from stormsail.market.fetch.client import RetryPolicy, connect
from stormsail.market.fetch.funding import fetch_funding
from stormsail.market.fetch.plan import Gap

__all__ = [
    "FetchResult",
    "Gap",
    "Progress",
    "RetryPolicy",
    "connect",
    "fetch_bars",
    "fetch_funding",
]
