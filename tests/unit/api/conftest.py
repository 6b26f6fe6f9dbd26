"""Runs of the front door that several tests look at: a control task, and a market in a store."""

import pytest

import stormsail as ss
from api_lab import CARTPOLE, MARKET
from stormsail.core.clock import ManualClock
from stormsail.market.interval import Interval
from stormsail.market.store import Store
from stormsail.market.synthetic import generate, write_world


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory):
    """Return a finished run of a control task."""
    out = tmp_path_factory.mktemp("cartpole") / "run"
    return ss.train(out=out, tensorboard=False, clock=ManualClock(), **CARTPOLE)


@pytest.fixture(scope="session")
def market(tmp_path_factory):
    """Return a workspace with a store of two symbols and a finished run on them."""
    place = tmp_path_factory.mktemp("market")
    world = generate("regime", symbols=2, bars=700, interval=Interval.parse("1h"), seed=3)
    write_world(Store(place / "store"), world)
    settings = {**MARKET, "task.data.store": str(place / "store")}
    ss.train(out=place / "runs" / "run", tensorboard=False, **settings)
    return place
