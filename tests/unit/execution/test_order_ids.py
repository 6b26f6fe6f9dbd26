import re
from dataclasses import replace

from stormsail.execution.order_ids import OrderKey, epoch_in, epoch_of, prefix

KEY = OrderKey("binance:1", "agent", "abcdef", 1_700_000_000_000, "BTC/USDT", "target", 0)


def test_an_id_is_a_function_of_its_key_alone():
    # SHA-256 of the seven parts, one a line, in base 32: written down once
    assert KEY.client_id == replace(KEY).client_id
    assert re.fullmatch(r"s1-[a-z2-7]{6}-abcdef-[a-z2-7]{16}", KEY.client_id)
    assert len(KEY.client_id) == 33 <= 36


def test_every_part_of_the_key_makes_another_id():
    changes = {
        "account": "binance:2",
        "strategy": "other",
        "epoch": "bbbbbb",
        "bar_ms": 1_700_000_000_001,
        "symbol": "ETH/USDT",
        "leg": "stop",
        "number": 1,
    }
    ids = {replace(KEY, **{name: value}).client_id for name, value in changes.items()}
    assert len(ids | {KEY.client_id}) == 8


def test_an_id_tells_account_and_epoch():
    assert KEY.client_id.startswith(prefix("binance:1"))
    assert not KEY.client_id.startswith(prefix("binance:2"))
    assert epoch_in(KEY.client_id) == "abcdef"


def test_ids_of_others_have_no_epoch():
    for other in ("", "web_123", "s1-", KEY.client_id + "x", KEY.client_id.upper()):
        assert epoch_in(other) is None


def test_two_journals_have_two_epochs():
    here = epoch_of(created_ns=1, host="a", pid=1)
    assert len({here, epoch_of(created_ns=2, host="a", pid=1)}) == 2
    assert len({here, epoch_of(created_ns=1, host="b", pid=1)}) == 2
    assert re.fullmatch("[a-z2-7]{6}", here)
