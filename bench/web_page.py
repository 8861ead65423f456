"""The web page in a real browser: what its first load transfers, and how soon a moved slider is on the screen.

A move is timed from the slider's event until the browser has drawn the frame after it: the second of two frames in a
row begins when the first has been drawn (HTML standard, section 8.11, "update the rendering"). A screen of 60 Hz alone
makes up to 17 ms of that.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from shared import labels
from tests.browser import DESKTOP, PHONE, Browser, chromium
from tools.stack import running

SCREENS = {"phone": PHONE, "desktop": DESKTOP}

# Each move is to another place, so that every line, sentence and table changes.
_MOVES = """
const [moves, done] = arguments;
const frame = () => new Promise((drawn) => requestAnimationFrame(drawn));
const sliders = ["k", "cost", "verify", "alpha"].map((id) => document.getElementById(id));
const all = { handler: [], shown: [] };
for (let i = 0; i < moves; i += 1) {
  await frame();
  const slider = sliders[i % sliders.length];
  const [low, high] = [Number(slider.min), Number(slider.max)];
  slider.value = String(low + (high - low) * ((i * 0.37) % 1));
  const began = performance.now();
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  all.handler.push(performance.now() - began);
  await frame();
  await frame();
  all.shown.push(performance.now() - began);
}
done(all);
"""


def measure(moves: int) -> dict[str, Any]:
    """Loads the page on both screens and moves its sliders in turn; times are in milliseconds."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=".") as state, running(Path(state)) as stack, chromium() as browser:
        for name, size in SCREENS.items():
            browser.size(size)
            browser.open(stack.edge_url + labels.BASE_PATH)
            browser.until("return document.getElementById('live-facts').children.length > 0")
            loaded = _transferred(browser)
            times = browser.run_async(f"(async (...arguments) => {{{_MOVES}}})(...arguments)", moves)
            found[name] = {**loaded, "moves": moves, "ms": times}
    return found


def _transferred(browser: Browser) -> dict[str, int]:
    ended = [event["params"] for event in browser.network() if event["method"] == "Network.loadingFinished"]
    return {"requests": len(ended), "bytes": sum(event["encodedDataLength"] for event in ended)}


def markdown(result: dict[str, Any]) -> str:
    """Returns the table."""
    lines = [
        "From a slider's event until the frame after it is drawn, two frames' waiting included; handler: the page's "
        "own work in it.",
        "",
        "| screen | bytes loaded | requests | moves | handler, median ms | drawn, median ms | 95 of 100 | longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in result.items():
        shown, handler = one["ms"]["shown"], one["ms"]["handler"]
        most = statistics.quantiles(shown, n=20)[-1]
        figures = [statistics.median(handler), statistics.median(shown), most, max(shown)]
        cells = [name, f"{one['bytes']:.0f}", one["requests"], one["moves"], *(f"{ms:.1f}" for ms in figures)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
