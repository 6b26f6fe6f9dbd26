"""The pictures of the demonstration's report in README.md and docs/tutorial.md.

Usage: `python scripts/demo_pictures.py` in the root of the repository, after `make demo`, where
there is Chromium with its driver. Each picture shows one section of `runs/demo/report.html`.
"""

import base64
import io
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from demo import PAGE
from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

PICTURES = Path("docs/pictures")
COLOURS = 256
"""Of a picture's palette: a third of the bytes, and no difference to the eye."""

PATIENCE = 60.0
"""Seconds that the page may take."""


class Shot(NamedTuple):
    """One picture: its file, the section that it begins with, and the screen."""

    name: str
    section: str
    width: int
    height: int
    scale: int = 1


SHOTS = (
    Shot("report_verdict.png", "verdict", 1280, 900),
    Shot("report_rules.png", "rules", 1280, 900),
    Shot("report_training.png", "training", 1280, 1000),
    Shot("report_phone.png", "verdict", 390, 844, scale=2),
)


def browser() -> webdriver.Chrome:
    """Return Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for word in ("--headless=new", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses root
    return webdriver.Chrome(
        options=options,
        service=webdriver.ChromeService(executable_path=shutil.which("chromedriver")),
    )


def take(driver: webdriver.Chrome, shot: Shot) -> None:
    """Write one picture."""
    size = {"width": shot.width, "height": shot.height, "deviceScaleFactor": shot.scale}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"mobile": False, **size})
    light = [{"name": "prefers-color-scheme", "value": "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": light})
    driver.get("about:blank")
    driver.get(Path(PAGE).resolve().as_uri())
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(driver, PATIENCE).until(lambda page: page.execute_script(ready))
    if shot.section != SHOTS[0].section:  # the first one begins with the head of the page
        place = "document.getElementById(arguments[0]).scrollIntoView()"
        driver.execute_script(place, shot.section)
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(taken))).convert("RGB")
    picture.quantize(COLOURS).save(PICTURES / shot.name, optimize=True)
    print(PICTURES / shot.name)


def main() -> None:
    """Take all pictures."""
    driver = browser()
    try:
        for shot in SHOTS:
            take(driver, shot)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
