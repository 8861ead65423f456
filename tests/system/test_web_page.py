"""The web page in a real browser, against a real edge and agent with the embedded pair."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import labels
from shared.client import Specdec
from shared.receipts import build_receipt, unsigned_signature
from tests.browser import DESKTOP, PATIENCE_S, PHONE, Browser, chromium, set_sliders
from tests.shared.build import golden
from tools.stack import Stack, running

pytestmark = pytest.mark.slow

SHOWN = "return document.getElementById('modeled-summary').textContent"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An agent and an edge."""
    with running(tmp_path_factory.mktemp("state"), environ={"SPECDEC_THREADS": "1"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """A browser for all tests, as it takes seconds to start."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(chrome: Browser, stack: Stack) -> Iterator[Browser]:
    """The page, freshly loaded; afterwards the browser must not have complained."""
    chrome.size(DESKTOP)
    chrome.open(stack.edge_url + labels.BASE_PATH)
    yield chrome
    assert chrome.complaints() == []


@pytest.fixture(scope="module")
def receipt(stack: Stack) -> dict[str, Any]:
    """The receipt of a measured run."""
    with Specdec(stack.edge_url, 2 * PATIENCE_S) as client:
        made = client.run("And it came to pass", n=12, ignore_eos=True)
    return {name: value for name, value in made.items() if name not in ("prompt_salt", "output")}


def rows(browser: Browser, selector: str) -> list[list[str]]:
    """The cells of a table's body."""
    found: list[list[str]] = browser.run(
        "return [...document.querySelector(arguments[0]).tBodies[0].rows].map((row) => "
        "[...row.cells].map((cell) => cell.textContent.trim()))",
        selector,
    )
    return found


# --- the modeled curve ----------------------------------------------------------------------------------------------


def on_a_slider(row: dict[str, Any]) -> bool:
    """Whether sliders can be moved to a golden row's values."""
    fits = all(abs(value * 100 - round(value * 100)) < 1e-9 for value in (row["alpha"], row["cost_ratio"]))
    return fits and 1 <= row["k"] <= 16 and row["cost_ratio"] <= 1 and 1 <= row["verify_cost"] <= 3


def test_curve_values_are_golden(page: Browser) -> None:
    """Wherever the sliders stand, the page shows the golden speed-up and tokens, to four digits, as MODELED."""
    asked = [row for row in golden("curve")["rows"] if on_a_slider(row)]
    assert len(asked) > 100
    for row in asked:
        set_sliders(page, k=row["k"], cost=row["cost_ratio"], verify=row["verify_cost"], alpha=row["alpha"])
        said = page.run(SHOWN)
        assert page.text("#modeled-speedup") == f"{round(row['expected_speedup'], 4):g}×", row
        assert float(page.text("#modeled-tokens")) == round(row["expected_tokens"], 4), row
        assert "MODELED" in said


def test_curve_is_a_table_too(page: Browser) -> None:
    """What is drawn is also in tables, whose captions say MODELED: here the values that the user's text names."""
    found = {
        alpha: (float(speedup), float(tokens)) for alpha, speedup, tokens in rows(page, "#table-alpha table")
    }
    assert (found["0.5"], found["0.7"], found["0.9"]) == (
        (1.0764, 1.9375),
        (1.5406, 2.7731),
        (2.2751, 4.0951),
    )
    assert page.text("#table-alpha caption") == "MODELED for k = 4"
    by_k = rows(page, "#table-k table")
    assert [row[0] for row in by_k] == [str(k) for k in range(1, 17)]
    assert by_k[3] == ["4", "1.5406", "2.7731"]


def test_curve_says_what_follows(page: Browser) -> None:
    """Where it breaks even, and the best k, are said in a sentence; also that it never pays."""
    set_sliders(page, k=1, cost=0.2, verify=1, alpha=0.1)
    assert "With k = 1 it pays above α = 0.200. At this α the best is not to speculate." in page.run(SHOWN)
    for verify in (1, 2):  # at 1 the speed-up is at most 1
        set_sliders(page, k=4, cost=1, verify=verify, alpha=1)
        assert "With k = 4 speculation never pays." in page.run(SHOWN)
    set_sliders(page, k=4, cost=0.2, verify=1, alpha=0.7)
    assert "At this α the best k is 3." in page.run(SHOWN)


def test_sliders_by_keyboard(page: Browser) -> None:
    """An arrow key moves a slider by one step, and the page follows."""
    slider = page.at("#k")
    page.run("arguments[0].focus()", slider)
    slider.send_keys("\ue014")  # arrow right
    assert page.text("#k-value") == "5"
    assert "k = 5: speed-up 1.4706×" in page.run(SHOWN)


def test_curves_are_drawn(page: Browser) -> None:
    """Both charts have something on them in more than one colour; pointing at one tells its values."""
    for chart in ("#chart-alpha", "#chart-k"):
        colours = page.run(
            """const canvas = document.querySelector(arguments[0] + " canvas");
               const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
               const seen = new Set();
               for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.add(data.slice(i, i + 3).join());
               return seen.size;""",
            chart,
        )
        assert colours > 3
    from selenium.webdriver import ActionChains

    ActionChains(page.driver).move_to_element(page.at("#chart-alpha .u-over")).perform()
    legend = page.until(
        "const t = document.querySelector('#chart-alpha .u-legend').textContent; return /\\d\\.\\d{4}/.test(t) && t"
    )
    assert re.search(r"speed-up \(MODELED\):?\s*\d\.\d{4}", legend)


# --- runs -----------------------------------------------------------------------------------------------------------

WATCH = """window.said = [];
const place = document.getElementById("run-status").parentNode;
new MutationObserver(() => window.said.push(place.textContent.trim()))
  .observe(place, { childList: true, characterData: true, subtree: true });"""

PHASES = "queued|starting|loading|calibrating|prefill|measuring|timing|metering|running"


def fill(browser: Browser, **fields: Any) -> None:
    """Fills in the run form."""
    for name, value in fields.items():
        field = browser.at(f"#run-form [name={name}]")
        if isinstance(value, bool):
            field.click()
        elif field.tag_name == "select":
            browser.run("arguments[0].value = arguments[1]", field, str(value))
        else:
            field.clear()
            field.send_keys(str(value))


def test_a_run_ends_measured(page: Browser) -> None:
    """A run from the form shows its progress, ends in a MEASURED badge, is verified, and every figure has its label."""
    page.run(WATCH)
    fill(page, prompt="And it came to pass", n=12, ignore_eos=True, include_output=True)
    page.at("#run-send").click()
    page.until("return document.querySelector('#run-result .histogram')", patience_s=2 * PATIENCE_S)
    said = page.run("return window.said")
    assert said[-1] == "Measured."
    phases = [one for one in said[1:-1] if one != "sent"]
    assert phases and all(
        re.fullmatch(rf"({PHASES})( [1-9]\d* (of [1-9]\d*|ahead))?", one) for one in phases
    ), said
    assert page.text("#run-result .label .badge") == "SPEC-DECODE MEASURED"
    assert "measured" in str(page.at("#run-result .label .badge").get_attribute("class"))
    assert page.text("#run-result .verdict").startswith("Receipt: OK")
    figures = dict(line[:2] for line in rows(page, "#run-result table"))
    assert re.fullmatch(
        r"\d\.\d+ MEASURED \(95 % interval \d\.\d{4} to \d\.\d{4}\)", figures["Accepted rate α"]
    )
    assert re.search(r"^\d\.\d{4} MEASURED \(95 % .* pairs$", figures["Speed-up, measured"])
    assert " MODELED" in figures["Speed-up, Theorem 3.8"]
    assert figures["Energy"].startswith("UNAVAILABLE ") and figures["Energy"].endswith(", ON_CPU")
    assert figures["Output unchanged"] == "yes MEASURED (lossless)"
    assert figures["Tower"] == "127.0.0.1; its key signed this measurement"
    counts = [int(line[1]) for line in rows(page, "#run-result .histogram")]
    assert (len(counts), sum(counts)) == (5, 12)
    by_k = {line[0]: line for line in rows(page, "#run-result details table")}
    assert re.fullmatch(r"\d\.\d+", by_k["4"][3]) and by_k["5"][3] == "not run"
    assert re.fullmatch(r"\d\.\d+", by_k["5"][2]), "the curve at measured costs"
    assert len(page.text("#run-result pre")) > 20
    assert not page.at("#run-progress").is_displayed()
    assert page.violations() == []


def measure(browser: Browser, **fields: Any) -> None:
    """Makes a short run from the form and waits for its receipt."""
    browser.run("document.getElementById('run-result').replaceChildren()")
    fill(browser, prompt="And it came to pass", n=12, **fields)
    browser.at("#run-send").click()
    browser.until("return document.querySelector('#run-result .histogram')", patience_s=2 * PATIENCE_S)


def test_a_second_k_joins_the_first(page: Browser) -> None:
    """Runs of one visit that differ in k alone stand together in the chart, all of them; others stand apart."""
    for k in (2, 3, 2):
        measure(page, k=k)
    measured = [line for line in rows(page, "#run-result details table") if line[3] != "not run"]
    assert [line[0] for line in measured] == ["2", "2", "3"]
    measure(page, k=3, seed=1)  # not like the others
    measured = [line for line in rows(page, "#run-result details table") if line[3] != "not run"]
    assert [line[0] for line in measured] == ["3"]


def test_an_automatic_k(page: Browser) -> None:
    """An adaptive run says which alpha it rests on and why it has no rate of its own; nothing is modeled for one k."""
    measure(page, k="auto")
    figures = dict(line[:2] for line in rows(page, "#run-result table"))
    assert "adaptive" in figures["Steps"]
    assert figures["Accepted rate α"] == "UNAVAILABLE drafts stop where a refusal is expected"
    assert re.match(r"[01]\.?\d* MEASURED .* steps of 4 draft tokens each", figures["α of fixed steps"])
    assert figures["Speed-up, Theorem 3.8"] == "UNAVAILABLE no single k is modeled"
    assert re.search(r"MODELED$", figures["Recommended"])


def test_a_run_is_cancelled(page: Browser, stack: Stack) -> None:
    """The button ends the run on the tower, and the page says so."""
    page.run(WATCH)
    fill(page, prompt="And it came to pass", n=500, ignore_eos=True)
    page.at("#run-send").click()
    page.until("return window.said.some((one) => / of \\d/.test(one))")
    page.at("#run-cancel").click()
    page.until("return document.getElementById('run-status').textContent === 'Cancelled.'")
    assert page.text("#run-result .label .badge") == "SPEC-DECODE ROADMAP"
    assert "cancelled" in page.text("#run-result").lower()
    sent = [
        event["params"]["request"]
        for event in page.network()
        if event["method"] == "Network.requestWillBeSent"
    ]
    run_id = next(one["url"] for one in sent if one["method"] == "DELETE").rpartition("/")[2]
    with Specdec(stack.edge_url, PATIENCE_S) as client:
        assert client.get_run(run_id)["payload"]["roadmap"]["code"] == "CANCELLED"


def test_a_bad_request_is_one_sentence(page: Browser) -> None:
    """What the service refuses is said in its own sentence."""
    fill(page, prompt="And it came to pass")
    page.run("document.querySelector('[name=n]').removeAttribute('max')")
    fill(page, n=501)
    page.at("#run-send").click()
    page.until("return document.getElementById('run-status').textContent.includes('from 1 to 500')")
    assert page.at("#run-send").is_enabled()
    page.forget()  # the browser itself notes a 422


def test_the_state_of_now(page: Browser) -> None:
    """The page shows label, pair and queue as /health tells them."""
    page.until("return document.getElementById('live-facts').children.length > 0")
    assert page.text("#live-label") == labels.HEALTH_MEASURED
    facts = page.text("#live-facts")
    assert "specdec-draft" in facts or "→" in facts
    assert "room for 4" in facts and "is possible now" in facts


def test_without_a_tower(chrome: Browser, tmp_path: Path) -> None:
    """With the tower down the page says ROADMAP, UNAVAILABLE and what to do, and nothing is MEASURED."""
    with running(tmp_path, edge=("--tower-url", "ws://127.0.0.1:9/specdec")) as alone:
        chrome.open(alone.edge_url + labels.BASE_PATH)
        chrome.until("return document.getElementById('live-facts').children.length > 0")
        assert chrome.text("#live-label") == labels.HEALTH_ROADMAP
        assert "Queue" in chrome.text("#live-facts") and "UNAVAILABLE" in chrome.text("#live-facts")
        chrome.at("#run-send").click()
        chrome.until("return document.querySelector('#run-result .label')")
        assert chrome.text("#run-result .label .badge") == "SPEC-DECODE ROADMAP"
        assert "Nothing was measured: the tower refused the connection." in chrome.text("#run-result")
        assert chrome.all("#run-result .badge.measured") == []
        assert chrome.complaints() == []


# --- receipts -------------------------------------------------------------------------------------------------------


def paste(browser: Browser, receipt: dict[str, Any], *, keys: bool) -> None:
    """Pastes a receipt, with the published keys or none, and has it checked."""
    browser.run("document.querySelector('#receipt-text').value = arguments[0]", json.dumps(receipt))
    if keys:
        browser.run("document.querySelector('#receipt-published').click()")
        browser.until("return document.querySelector('#receipt-keys').value.includes('BEGIN PUBLIC KEY')")
    browser.at("#receipt-check").click()
    browser.until("return document.querySelector('#receipt-checks .verdict')")


def test_a_good_receipt(page: Browser, receipt: dict[str, Any]) -> None:
    """A pasted receipt passes with the keys that it was signed by; who signed is said, its figures are shown."""
    paste(page, receipt, keys=True)
    assert page.text("#receipt-checks .verdict") == "Receipt: OK"
    signers = page.text("#receipt-checks .signers")
    assert f"Signed by the edge, key {receipt['signature']['keyid']} (ECDSA_SHA_256)" in signers
    assert f"Signed by the tower 127.0.0.1, key {receipt['payload']['tower']['keyid']}" in signers
    assert "unproven" not in signers
    assert page.text("#receipt-said .label .badge") == "SPEC-DECODE MEASURED"


def test_a_good_receipt_without_keys(page: Browser, receipt: dict[str, Any]) -> None:
    """Without keys signatures are unproven, which is a warning, and said."""
    paste(page, receipt, keys=False)
    assert page.text("#receipt-checks .verdict") == "Receipt: OK, with 2 warnings"
    assert "the signature cannot be checked without a pinned key" in page.text("#receipt-checks .checks")
    assert "Signed by" not in page.text("#receipt-checks .signers")
    assert page.text("#receipt-checks .signers").count("Says, unproven, that it is signed by") == 2
    assert dict(line[:2] for line in rows(page, "#receipt-said table"))["Tower"].endswith(
        "is not proven here"
    )


@pytest.mark.parametrize(
    ("path", "value", "check"),
    [
        (("payload", "accepted_rate"), 0.9999, "digest"),
        (("payload", "measurement", "emitted"), 1, "digest"),
        (("payload_sha3_256",), "0" * 64, "digest"),
        (("signature", "keyid"), "0" * 64, "signature"),
        (("payload", "tower", "attested"), "FAILED", "attestation"),
    ],
)
def test_a_tampered_receipt(
    page: Browser, receipt: dict[str, Any], path: tuple[str, ...], value: Any, check: str
) -> None:
    """One changed value shows red, names the check that failed, and hides the figures."""
    tampered = copy.deepcopy(receipt)
    place = tampered
    for name in path[:-1]:
        place = place[name]
    assert place[path[-1]] != value
    place[path[-1]] = value
    paste(page, tampered, keys=True)
    assert page.text("#receipt-checks .verdict") == "Receipt: FAILED"
    failed = [str(one.get_property("textContent")) for one in page.all("#receipt-checks .check.failed")]
    assert any(one.startswith(f"FAILED {check}: ") for one in failed), failed
    red, green, blue = map(
        int, re.findall(r"\d+", page.at("#receipt-checks .verdict").value_of_css_property("color"))[:3]
    )
    assert red > 2 * max(green, blue)
    assert page.all("#receipt-said .badge") == []


def test_a_receipt_is_dropped_or_chosen(page: Browser, receipt: dict[str, Any], tmp_path: Path) -> None:
    """A file that is dropped on the page, or chosen, is checked at once."""
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt))
    page.at("#receipt-file").send_keys(str(file))
    page.until("return document.querySelector('#receipt-checks .verdict')")
    assert page.text("#receipt-checks .verdict").startswith("Receipt: OK")
    page.run(
        """document.querySelector("#receipt-checks").replaceChildren();
           const data = new DataTransfer();
           data.items.add(new File([arguments[0]], "receipt.json"));
           document.querySelector("#receipt-drop").dispatchEvent(
             new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));""",
        "not a receipt",
    )
    page.until("return document.querySelector('#receipt-checks .verdict')")
    assert page.text("#receipt-checks .verdict") == "Receipt: FAILED"
    assert "the text is not JSON" in page.text("#receipt-checks")


def forged(receipt: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An unsigned receipt with a right digest whose payload says something else."""
    payload = {**copy.deepcopy(receipt["payload"]), **changes}
    return build_receipt(payload, unsigned_signature("none"), receipt["generated_at"])


def test_hostile_text_stays_text(page: Browser, receipt: dict[str, Any]) -> None:
    """Markup in a receipt that passes its checks is shown as it stands, and does nothing."""
    markup = "<img src=x onerror='window.hacked=1'>"
    tower = {"id": markup, "attested": "UNPINNED"}
    paste(page, forged(receipt, draft_model=markup, tower=tower), keys=False)
    assert page.text("#receipt-checks .verdict").startswith("Receipt: OK")
    figures = dict(line[:2] for line in rows(page, "#receipt-said table"))
    assert figures["Pair"].startswith(markup) and figures["Tower"].startswith(markup)
    assert page.run("return window.hacked") is None
    assert page.all("#receipt-said img, #receipt-checks img") == []


@pytest.mark.parametrize(
    "change", [{"measurement": {}}, {"measurement": {"verdict": {"valid": True}}}, {"quality_delta": None}]
)
def test_figures_that_cannot_be_read(page: Browser, receipt: dict[str, Any], change: dict[str, Any]) -> None:
    """A payload of another shape shows its checks, and not one figure."""
    paste(page, forged(receipt, tower={"id": "t", "attested": "UNPINNED"}, **change), keys=False)
    assert page.text("#receipt-said") == "Its figures cannot be read."
    assert page.all("#receipt-checks .check")


def test_what_is_left_of_an_earlier_receipt(page: Browser, receipt: dict[str, Any]) -> None:
    """A change of the text takes away verdict and figures of what stood there before."""
    paste(page, receipt, keys=False)
    assert page.all("#receipt-said .badge")
    page.at("#receipt-text").send_keys(" ")
    assert page.text("#receipt-checks") == page.text("#receipt-said") == ""


# --- the page as a whole --------------------------------------------------------------------------------------------


def test_nobody_else_is_asked_for_anything(page: Browser, stack: Stack, receipt: dict[str, Any]) -> None:
    """Loading, running and checking make requests of the service alone; the first load is one file and /health."""
    page.until("return document.getElementById('live-facts').children.length > 0")
    first = page.network()
    sent = [
        event["params"]["request"]["url"] for event in first if event["method"] == "Network.requestWillBeSent"
    ]
    base = stack.edge_url + labels.BASE_PATH
    assert [url for url in sent if not url.startswith("data:")] == [base, f"{base}/health"]
    loaded = [event["params"] for event in first if event["method"] == "Network.loadingFinished"]
    assert 50_000 < sum(event["encodedDataLength"] for event in loaded) <= 150_000
    paste(page, receipt, keys=True)
    set_sliders(page, k=7)
    measure(page)
    later = [
        event["params"]["request"]["url"]
        for event in page.network()
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert later and all(url.startswith((f"{base}/", "data:", "blob:")) for url in later)


def test_a_reload_with_what_the_browser_has_kept(chrome: Browser, stack: Stack) -> None:
    """A page that is confirmed (304) instead of sent again runs as it did: the answer carries the page's own policy."""
    chrome.cache(on=True)
    try:
        chrome.open(stack.edge_url + labels.BASE_PATH)
        chrome.forget()
        chrome.driver.refresh()
        chrome.until("return document.getElementById('live-facts').children.length > 0")
        answers = {
            event["params"]["response"]["url"]: event["params"]["response"]["status"]
            for event in chrome.network()
            if event["method"] == "Network.responseReceived"
        }
        extra = [
            event["params"]["statusCode"]
            for event in chrome.seen
            if event["method"].endswith("responseReceivedExtraInfo")
        ]
        assert answers[stack.edge_url + labels.BASE_PATH] == 200 and 304 in extra
        assert chrome.text("#modeled-speedup") == "1.5406×"
        assert chrome.complaints() == []
    finally:
        chrome.cache(on=False)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_is_for_everybody(
    page: Browser, receipt: dict[str, Any], tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    """On a phone and a desk, light and dark, axe finds nothing, nothing is wider than the screen; pictures are kept."""
    page.size(size, dark=dark)
    page.run("window.dispatchEvent(new Event('resize'))")
    paste(page, receipt, keys=True)
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.violations() == []
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    folder = Path(os.environ.get("SPECDEC_SCREENSHOTS", tmp_path))
    picture = folder / f"page-{'phone' if size == PHONE else 'desktop'}-{'dark' if dark else 'light'}.png"
    page.screenshot(picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 50_000


def test_without_scripts_there_is_a_summary(page: Browser, stack: Stack) -> None:
    """A browser without scripts shows what it is about, the modeled table and links, nothing that needs a script."""
    page.scripts(on=False)
    try:
        page.open(stack.edge_url + labels.BASE_PATH)
        words = page.at("body").text
        assert "Does speculative decoding pay on this tower" in words
        assert re.search(r"0\.7\s+2\.7731\s+1\.5406", words)
        assert "MODELED for k = 4, c = 0.2, v = 1" in words
        assert not page.at("#run-form").is_displayed() and not page.at("#receipt-check").is_displayed()
        assert page.at(f"a[href='{labels.BASE_PATH}/health']").is_displayed()
    finally:
        page.scripts(on=True)


def test_by_keyboard_alone(page: Browser) -> None:
    """From the top, Tab reaches the skip link, the run form, all sliders and the receipt's controls, each visibly."""
    from selenium.webdriver import ActionChains, Keys

    seen = []
    for _ in range(60):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        seen.append(
            page.run(
                "const e = document.activeElement; "
                "return [e.id || (e.name ? e.name + ' field' : e.className || e.tagName), "
                "getComputedStyle(e).outlineStyle !== 'none' || e.className === 'skip']"
            )
        )
    names = [name for name, _ in seen]
    wanted = [
        "skip",
        "prompt field",
        "run-send",
        "k",
        "cost",
        "verify",
        "alpha",
        "receipt-file",
        "receipt-check",
    ]
    assert [name for name in names if name in wanted][: len(wanted)] == wanted
    assert all(visible for name, visible in seen if name != "BODY")
