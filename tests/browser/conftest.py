"""A real browser, and pages made from a small backtest; where there is no browser, a skip."""

import base64
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVERS = ("chromedriver", "chromium.chromedriver")
PATIENCE = 60.0
"""Seconds that a page may take; ours take two."""

PHONE, DESKTOP = 390, 1280
HEIGHT = 900


def _program(names: tuple[str, ...]) -> str | None:
    return next((path for path in map(shutil.which, names) if path), None)


class Page:
    """One tab of a browser, with the questions that the tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def command(self, name: str, **arguments: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def ask(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def show(self, *, width: int = DESKTOP, dark: bool = False, height: int = HEIGHT) -> None:
        """Be a screen of that width, and a reader who likes it dark or light."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", mobile=False, **size)
        self.wish = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media="screen", features=[self.wish])

    def open(self, path: Path, *, ready: bool = True) -> "Page":
        """Open a file, forgetting what happened before; wait until everything is drawn."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        if ready:
            self.until("return document.documentElement.dataset.ready === 'yes'")
        return self

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something true; return it."""
        return self.wait(lambda: self.ask(script, *arguments), script)

    def wait(self, question: Callable[[], Any], words: str) -> Any:
        """Ask again and again until the answer is yes."""
        end = time.monotonic() + PATIENCE
        while not (answer := question()):
            assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain for: {words}"
            time.sleep(0.05)
        return answer

    def complaints(self) -> list[str]:
        """Return what the console has been told since the last question."""
        return [f"{line['level']}: {line['message']}" for line in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last question."""
        log = self.driver.get_log("performance")
        events = [json.loads(line["message"])["message"] for line in log]
        kinds = {"Network.requestWillBeSent": "request", "Network.webSocketCreated": None}
        sent = [event["params"] for event in events if event["method"] in kinds]
        return [params.get("request", params)["url"] for params in sent]

    def picture(self, file: Path, *, height: int | None = None) -> Path:
        """Write what is seen as PNG; with a height, of the page from its top."""
        clip = {}
        if height is not None:
            width = self.ask("return document.documentElement.clientWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=bool(clip), **clip)
        file.write_bytes(base64.b64decode(taken["data"]))
        return file

    def paper(self) -> bytes:
        """Return the page as it is printed, as PDF."""
        # while a screen is emulated, rules for paper would not count
        self.command("Emulation.setEmulatedMedia", media="", features=[self.wish])
        printed = self.command("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        self.command("Emulation.setEmulatedMedia", media="screen", features=[self.wish])
        return base64.b64decode(printed["data"])


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a browser without a window, or skip."""
    program, driver = _program(BROWSERS), _program(DRIVERS)
    if program is None or driver is None:
        pytest.skip("no Chromium with its driver here: `apt-get install chromium chromium-driver`")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the extra `dev`")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--hide-scrollbars")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    started = webdriver.Chrome(options=options, service=service)
    started.set_page_load_timeout(PATIENCE)
    yield started
    started.quit()


@pytest.fixture
def page(browser: Any) -> Page:
    """Return a tab that has forgotten which colours were chosen."""
    tab = Page(browser)
    tab.show()
    return tab
