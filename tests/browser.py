"""A real browser, headless, that says what it has asked for on the network."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.programs import program

PATIENCE_S = 60 * float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))

AXE = Path(next(iter(find_spec("axe_playwright_python").submodule_search_locations))) / "axe.min.js"  # type: ignore[union-attr,arg-type]

PHONE, DESKTOP = (360, 740), (1280, 900)


class Browser:
    """Chromium with a page in it."""

    def __init__(self, driver: Chrome) -> None:
        """Takes over a browser that has been started."""
        self.driver = driver
        self.seen: list[dict[str, Any]] = []

    def open(self, address: str) -> None:
        """Loads a page and forgets what was asked for before."""
        self.forget()
        self.driver.get(address)

    def forget(self) -> None:
        """Forgets what was asked for, and complained of, so far."""
        self._log("performance")
        self._log("browser")

    def at(self, selector: str) -> WebElement:
        """The element that a CSS selector finds."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """All elements that a CSS selector finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Text of an element, hidden or not."""
        return str(self.at(selector).get_property("textContent"))

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns, which runs as a function's body in the page."""
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: Any) -> Any:
        """What a script hands to the last of its arguments, a function."""
        return self.driver.execute_async_script(script, *arguments)

    def until(self, script: str, *arguments: Any, patience_s: float = PATIENCE_S) -> Any:
        """Waits until a script returns something that counts as true."""
        return WebDriverWait(self.driver, patience_s, 0.1).until(
            lambda _: self.run(script, *arguments), f"never true: {script}"
        )

    def size(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Gives the page a screen, in light or dark."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._command("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def scripts(self, *, on: bool) -> None:
        """Lets pages run scripts, or not."""
        self._command("Emulation.setScriptExecutionDisabled", {"value": not on})

    def screenshot(self, path: Path) -> None:
        """Saves a picture of the whole page."""
        whole = self._command("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": whole["width"], "height": whole["height"], "scale": 1}
        options = {"captureBeyondViewport": True, "format": "png", "clip": clip}
        found = self._command("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(found["data"]))

    def network(self) -> list[dict[str, Any]]:
        """Events of the network since the page was opened, each once."""
        entries = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        self.seen = [entry for entry in entries if entry["method"].startswith("Network.")]
        return self.seen

    def cache(self, *, on: bool) -> None:
        """Lets the browser keep what it has loaded, or not."""
        self._command("Network.setCacheDisabled", {"cacheDisabled": not on})

    def complaints(self) -> list[str]:
        """What the browser's console holds of errors, such as what the page's policy forbade."""
        return [entry["message"] for entry in self._log("browser") if entry["level"] == "SEVERE"]

    def violations(self) -> list[str]:
        """What axe finds that shuts people out: rule, and where."""
        self.run(AXE.read_text(encoding="utf-8"))
        found = self.run_async(
            "const done = arguments[0]; axe.run().then((r) => done(r.violations), (e) => done([{id: String(e)}]));"
        )
        return [f"{one['id']}: {[node['target'] for node in one.get('nodes', [])]}" for one in found]

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)


def set_sliders(browser: Browser, **values: float) -> None:
    """Moves sliders, as a hand would: each tells the page that it has moved."""
    browser.run(
        """for (const [id, value] of Object.entries(arguments[0])) {
             const slider = document.getElementById(id);
             slider.value = value;
             slider.dispatchEvent(new Event("input", { bubbles: true }));
           }""",
        values,
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """Runs a browser for the length of the block."""
    options = ChromeOptions()
    options.binary_location = program("chromium", "chromium")
    # No sandbox: these tests may run as root, and the page is our own.
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-gpu",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options, Service(program("chromedriver", "chromium-driver")))
    try:
        driver.set_script_timeout(PATIENCE_S)
        browser = Browser(driver)
        browser.cache(on=False)  # each load is a first one
        yield browser
    finally:
        driver.quit()
