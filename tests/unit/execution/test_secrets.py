"""API keys: found in three places, shown in none."""

import copy
import io
import json
import logging
import os
import pickle
import sys
import traceback
from dataclasses import asdict

import pytest

from stormsail.core.errors import ConfigError
from stormsail.execution.secrets import (
    Credentials,
    RedactionFilter,
    Secret,
    encodings,
    load_credentials,
    redacted_logs,
)

KEY, SECRET = "canaryKEY-0123456789abcdef", "canarySECRET+/fedcba9876543210=="


def hits(text):
    return [form for part in (KEY, SECRET) for form in encodings(part) if form in text]


@pytest.fixture
def credentials():
    return Credentials(Secret(KEY), Secret(SECRET), "test")


@pytest.mark.spec("E1")
def test_a_secret_shows_itself_nowhere(credentials):
    secret = credentials.secret
    texts = [
        repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{secret} {secret!r}",
        repr([secret]), repr({"a": secret}), repr(credentials), str(credentials),
        repr(asdict(credentials)), json.dumps({"a": secret}, default=str), repr(vars(credentials)),
        repr(copy.deepcopy(credentials)), repr(dir(secret)), repr([secret.reveal()]),
        repr({"apiKey": credentials.key.reveal()}),
    ]  # fmt: skip
    assert not hits("\n".join(texts))
    assert (str(secret), repr(secret), f"{secret}") == ("***", "***", "***")
    with pytest.raises(TypeError):
        vars(secret)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="not written anywhere"):
            pickle.dumps(credentials, protocol)
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert secret.reveal() == SECRET
    assert (secret == Secret(SECRET), secret == Secret("x"), secret == SECRET) == (
        True,
        False,
        False,
    )


def test_a_traceback_with_its_variables_shows_a_mask(credentials):
    def fail(own):
        raise ValueError(f"with {own}")

    try:
        fail(credentials)
    except ValueError:
        kind, error, trace = sys.exc_info()
        told = traceback.TracebackException(kind, error, trace, capture_locals=True)
        text = "".join(told.format())
    assert "***" in text
    assert not hits(text)


def test_the_environment_is_read_first_and_emptied():
    environment = {"STORMSAIL_BINANCE_KEY": KEY, "STORMSAIL_BINANCE_SECRET": SECRET, "X": "y"}
    found = load_credentials("binance", environment=environment)
    assert (found.key.reveal(), found.secret.reveal(), found.source) == (KEY, SECRET, "environment")
    assert environment == {"X": "y"}


@pytest.mark.refusal
def test_half_a_key_is_refused():
    with pytest.raises(ConfigError) as caught:
        load_credentials("binance", environment={"STORMSAIL_BINANCE_KEY": KEY})
    assert caught.value.code == "secret-missing"
    assert not hits(str(caught.value))


def keys_file(folder, text=f'[binance]\nkey = "{KEY}"\nsecret = "{SECRET}"\n', mode=0o600):
    path = folder / "keys.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "key", ["canarykey\n", " canarykey", "canary key", "canarykey\u2026", "\x07"]
)
def test_a_key_that_can_be_no_header_is_refused_without_quoting_it(key):
    environment = {"STORMSAIL_BINANCE_KEY": key, "STORMSAIL_BINANCE_SECRET": "x"}
    with pytest.raises(ConfigError, match=r"environment: character \d+ of \d+") as raised:
        load_credentials("binance", environment=environment)
    assert "canary" not in str(raised.value)


def test_a_secret_may_have_lines():
    pem = "-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n"
    environment = {"STORMSAIL_BINANCE_KEY": "key", "STORMSAIL_BINANCE_SECRET": pem}
    assert load_credentials("binance", environment=environment).secret.reveal() == pem


def test_a_file_of_the_owner_alone_is_read(tmp_path):
    path = keys_file(tmp_path)
    found = load_credentials("binance", environment={}, file=path)
    assert (found.key.reveal(), found.secret.reveal(), found.source) == (KEY, SECRET, str(path))


@pytest.mark.refusal
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666, 0o602, 0o610, 0o777])
def test_a_file_that_others_can_touch_is_refused_unread(tmp_path, mode):
    with pytest.raises(ConfigError) as caught:
        load_credentials("binance", environment={}, file=keys_file(tmp_path, mode=mode))
    assert (caught.value.code, caught.value.found) == ("secret-exposed", f"mode {mode:04o}")


@pytest.mark.refusal
def test_a_link_a_folder_or_a_pipe_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(keys_file(tmp_path))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ConfigError) as caught:
            load_credentials("binance", environment={}, file=tmp_path / name)
        assert caught.value.code == "secret-exposed"


@pytest.mark.refusal
@pytest.mark.parametrize(
    "text",
    ["", "[binance]\n", f'[binance]\nkey = "{KEY}"\n', f'[other]\nkey="{KEY}"\nsecret="{SECRET}"\n',
     f"[binance]\nkey = {KEY}\n", 'binance = "x"\n', f'[binance]\nkey = 1\nsecret = "{SECRET}"\n',
     '[binance]\nkey = ""\nsecret = ""\n'],
)  # fmt: skip
def test_a_file_without_both_is_refused_without_quoting_it(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load_credentials("binance", environment={}, file=keys_file(tmp_path, text))
    assert caught.value.code == "secret-missing"
    told = "".join(traceback.format_exception(caught.value))
    assert not hits(told)


@pytest.mark.refusal
def test_a_file_that_is_named_and_missing_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_credentials("binance", environment={}, file=tmp_path / "none.toml")
    assert caught.value.found == f"no file {tmp_path / 'none.toml'}"


def test_the_keyring_is_the_last_place(tmp_path, monkeypatch):
    class Ring:
        @staticmethod
        def get_password(service, name):
            return {"binance-key": KEY, "binance-secret": SECRET}.get(name) and f"{service}-{name}"

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "keyring", Ring)
    found = load_credentials("binance", environment={})
    assert (found.key.reveal(), found.source) == ("stormsail-binance-key", "keyring")
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError) as caught:
        load_credentials("binance", environment={})
    assert caught.value.code == "secret-missing"


@pytest.mark.spec("E1")
def test_no_logger_writes_a_secret_in_any_form(credentials):
    stream = io.StringIO()
    names = ["", "ccxt", "ccxt.base.exchange", "urllib3.connectionpool", "aiohttp.client", "new"]
    factory = logging.getLogRecordFactory()  # other libraries, such as Ray, set their own for good
    with redacted_logs(credentials):
        assert logging.getLogRecordFactory() is not factory
        handler = logging.StreamHandler(stream)
        later = logging.getLogger("new.later")
        later.addHandler(handler)
        later.setLevel(logging.DEBUG)
        root = logging.getLogger()
        root.addHandler(handler)
        before = root.level
        root.setLevel(logging.DEBUG)
        try:
            for name in [*names, "new.later"]:
                log = logging.getLogger(name)
                for form in [*encodings(KEY), *encodings(SECRET)]:
                    log.error("header %s", {"X-MBX-APIKEY": form})
                    log.error(form)
                    log.error("%d", form)  # a mistake of the caller must not open a door
                try:
                    raise ValueError(SECRET)  # noqa: TRY301 - to be logged
                except ValueError:
                    log.exception("failed with %s", KEY, stack_info=True)
        finally:
            root.removeHandler(handler)
            later.removeHandler(handler)
            root.setLevel(before)
    assert stream.getvalue().count("***") > 100
    assert not hits(stream.getvalue())
    assert logging.getLogRecordFactory() is factory
    assert not any(isinstance(f, RedactionFilter) for f in logging.getLogger("ccxt").filters)


def test_the_forms_are_those_in_which_texts_are_written_by_accident():
    assert set(encodings("secret+1/x")) == {
        "secret+1/x", "c2VjcmV0KzEveA==", "c2VjcmV0KzEveA", "7365637265742b312f78",
        "7365637265742B312F78", "secret%2B1%2Fx", "x/1+terces",
    }  # fmt: skip
    # Shorter forms would be found by chance.
    assert encodings("short") == ["73686F7274", "73686f7274", "c2hvcnQ="]


def test_no_variable_of_the_process_is_left(monkeypatch):
    monkeypatch.setenv("STORMSAIL_BINANCE_KEY", KEY)
    monkeypatch.setenv("STORMSAIL_BINANCE_SECRET", SECRET)
    load_credentials("binance", environment=os.environ)
    assert not hits(repr(dict(os.environ)))
