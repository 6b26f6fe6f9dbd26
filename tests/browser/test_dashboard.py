"""The dashboard in a real browser: drawn, followed, killed, on a phone, in the dark."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from axe_core_python.selenium import Axe

from dashboard_lab import TOKEN, VIEW, Desk, dashboard
from stormsail.core.errors import DataError

DESKTOP, PHONE = 1280, 390


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def opened(page, desk: Desk) -> Iterator[object]:
    """Return a tab that shows the dashboard of a desk."""
    with dashboard(desk) as running:
        page.driver.get("about:blank")
        page.complaints(), page.requests()
        page.driver.get(running.url)
        page.until("return document.documentElement.dataset.ready === 'yes'")
        page.url = running.url
        yield page
        page.driver.get("about:blank")


def text(page, name: str) -> str:
    return page.ask(f"return document.getElementById('{name}').textContent")


def test_the_page_shows_every_part_of_the_state(opened) -> None:
    assert text(opened, "state") == "ACTIVE"
    assert text(opened, "equity") == "98,800.00 USDT"
    assert text(opened, "since") == "\u22121.20 % since the start"
    assert text(opened, "day") == "\u22121.20 %"
    assert text(opened, "drawdown") == "\u22125.00 %"
    assert text(opened, "predicted") == "\u22129.20 %"
    tail = "worst 5 % of 24 h; realised \u2013 in 3 windows; limit \u221210.00 %"
    assert text(opened, "tail") == tail
    assert "BTC/USDT:USDT41.0 %60.0 %" in text(opened, "positions")
    assert "max leverage" in text(opened, "decisions")
    assert "ss-1" in text(opened, "orders")
    assert "running for1 d 1 h" in text(opened, "health")
    points = opened.ask("return document.querySelector('#curve polyline').getAttribute('points')")
    assert len(points.split()) == 5


def test_what_a_venue_says_stays_text(opened) -> None:
    assert "<b>READY</b>" in text(opened, "events")
    assert opened.ask("return document.querySelector('#events b')") is None


def test_it_loads_nothing_from_elsewhere_and_complains_of_nothing(opened) -> None:
    asked = [address for address in opened.requests() if not address.startswith("data:")]
    assert all(address.startswith(opened.url) for address in asked), asked
    assert opened.complaints() == []


def test_a_change_appears_by_itself(opened, desk: Desk) -> None:
    desk.shown = replace(VIEW, state="REDUCING", state_reason="predicted tail beyond the limit")
    opened.until("return document.getElementById('state').textContent === 'REDUCING'")
    assert text(opened, "reason") == "predicted tail beyond the limit"


def test_an_account_that_cannot_be_read_says_so_until_it_can(opened, desk: Desk) -> None:
    desk.problem = DataError("data-write", wrong="w", found="<b>full</b>", remedy="Free room.")
    opened.until("return document.getElementById('state').textContent === 'UNREADABLE'")
    assert text(opened, "reason") == str(desk.problem)
    assert opened.ask("return document.querySelector('#reason b')") is None
    desk.problem = None
    opened.until("return document.getElementById('state').textContent === 'ACTIVE'")
    assert opened.ask("return document.getElementById('reason').hidden") is True


def test_the_kill_button_needs_the_token(opened, desk: Desk) -> None:
    opened.ask("document.getElementById('kill').click()")
    opened.ask("document.getElementById('token').value = 'guess'")
    opened.ask("document.getElementById('sure').click()")
    opened.until("return document.getElementById('answer').textContent === 'the token is wrong'")
    assert desk.killed == []
    opened.ask(f"document.getElementById('token').value = '{TOKEN}'")
    opened.ask("document.getElementById('sure').click()")
    opened.until("return document.getElementById('state').textContent === 'KILLED'")
    assert desk.killed == ["dashboard"]
    assert text(opened, "reason") == "Kill switch: dashboard"
    assert opened.ask("return document.getElementById('kill').disabled") is True
    assert opened.ask("return document.getElementById('token').value") == ""


def test_on_a_phone_every_value_is_on_the_screen_beside_its_name(opened, desk: Desk) -> None:
    opened.show(width=PHONE)
    desk.shown = replace(VIEW, state="REDUCING")
    opened.until("return document.getElementById('state').textContent === 'REDUCING'")
    cells = opened.ask(
        "return [...document.querySelectorAll('tbody td')].map((own) => {"
        " const box = own.getBoundingClientRect();"
        " return [getComputedStyle(own, '::before').content, own.textContent, box.left, box.right];"
        "})"
    )
    assert len(cells) == 7 + 8 + 5
    assert all(0 <= left < right <= PHONE for _, _, left, right in cells), cells
    named = {(before.strip('"').strip(), said) for before, said, _, _ in cells}
    assert {("gate", "max leverage"), ("client id", "ss-1"), ("price", "34120.5")} <= named
    opened.show(width=DESKTOP)
    names = opened.ask(
        "return [...document.querySelectorAll('tbody td')]"
        ".map((own) => getComputedStyle(own, '::before').content)"
    )
    assert set(names) == {"none"}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_it_fits_the_screen_and_those_who_cannot_see_it(opened, width: int, dark: bool) -> None:
    opened.show(width=width, dark=dark)
    assert opened.ask("return document.documentElement.scrollWidth") <= width
    found = Axe().run(opened.driver)["violations"]
    assert [(each["id"], each["impact"]) for each in found] == []
    background = opened.ask("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(14, 19, 26)" if dark else "rgb(246, 247, 249)")
