"""Tests of `edge.page`: one answer, strict policy, the golden numbers, licence beside the library."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edge import page as pages
from edge.page import MODULES, page
from shared.curve import accounting_modeled, optimal_k
from tests.programs import program
from tests.shared.build import golden

WEB = Path(pages.__file__).with_name("web")


class Parts(HTMLParser):
    """What a page is made of.

    Attributes:
        scripts: Texts of its scripts.
        styles: Texts of its style sheets.
        addresses: Whatever elements point to.
        handlers: Attributes with scripts or styles in them, which the policy would forbid.
        ids: Every id.
    """

    def __init__(self) -> None:
        """Reads the page."""
        super().__init__()
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self._inside = ""
        self.feed(page().text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what an element points to."""
        self._inside = tag
        for name, value in attrs:
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                self.addresses.append(value or "")
            if name == "style" or name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        """Leaves the element."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Notes a script or a style sheet."""
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside == "style":
            self.styles.append(data)


PARTS = Parts()


def digest(text: str) -> str:
    """A part as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_lets_in_the_page_and_nothing_else() -> None:
    """Two scripts and a style sheet run by their digests, requests go to the page's own origin."""
    directives = dict(part.split(" ", 1) for part in page().policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"].split() == [digest(text) for text in PARTS.scripts]
    assert directives["style-src"].split() == [digest(text) for text in PARTS.styles]
    assert (len(PARTS.scripts), len(PARTS.styles)) == (2, 1)
    assert directives["connect-src"] == "'self'"
    assert "unsafe" not in page().policy and "http" not in page().policy
    assert not PARTS.handlers


def test_the_page_asks_nobody_else_for_anything() -> None:
    """Every address in the page is of its own service, on the page itself, or no address at all."""
    ours = ("/api/a11oy/v1/specdec/", "#", "data:,")
    assert PARTS.addresses and all(address.startswith(ours) for address in PARTS.addresses)


def test_the_page_is_small() -> None:
    """All that a browser loads is at most 150 KB, uncompressed."""
    assert 50_000 < len(page().text.encode()) <= 150_000


def test_nothing_is_left_to_be_filled_in() -> None:
    """Each placeholder has been replaced, and every id stands once."""
    without = page().text
    for part in PARTS.scripts:
        without = without.replace(part, "")
    assert "{{" not in without
    assert len(set(PARTS.ids)) == len(PARTS.ids)


def test_without_a_script_there_is_the_modeled_table() -> None:
    """A browser without JavaScript shows the curve's golden values under their label."""
    shown = re.findall(r'<th scope="row">(0\.\d)</th><td>([\d.]+)</td><td>([\d.]+)</td>', page().text)
    block = accounting_modeled(4, 0.2)
    assert {alpha: float(tokens) for alpha, tokens, _ in shown} == block["expected_tokens_per_step_at_alpha"]
    assert {alpha: float(speedup) for alpha, _, speedup in shown} == block["expected_speedup_at_alpha"]
    assert '<span class="badge modeled">MODELED</span> for k = 4, c = 0.2, v = 1' in page().text


def test_the_library_comes_with_its_licence() -> None:
    """The library's copyright and permission notice stand in the page, before its code."""
    notice = (WEB / "uplot.LICENSE").read_text()
    assert notice.startswith("The MIT License (MIT)\n\nCopyright (c) 2022 Leon Sorokin")
    assert PARTS.scripts[0].startswith(f"/*! {notice}")
    assert hashlib.sha256((WEB / "uplot.min.js").read_bytes()).hexdigest() == UPLOT
    assert (WEB / "uplot.min.js").read_text().startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")


UPLOT = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
"""Of dist/uPlot.iife.min.js in the package uplot 1.6.32."""


def test_every_module_is_in_the_page() -> None:
    """No module of the page's is left out; what is for Node alone is."""
    assert {path.name for path in WEB.glob("*.mjs")} - set(MODULES) == {"verify-cli.mjs"}


def test_a_module_before_one_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order in which a module would come too late is refused."""
    monkeypatch.setattr(pages, "MODULES", ("curve.mjs", "model.mjs"))
    with pytest.raises(ValueError, match=r"curve\.mjs comes before charts\.mjs, which it needs"):
        pages._script()


def test_a_part_that_would_end_its_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in which its own end tag stands is refused: a browser would take the rest for text."""
    read = pages._read
    monkeypatch.setattr(pages, "_read", lambda name: "'</SCRIPT>'" if name == "app.mjs" else read(name))
    with pytest.raises(ValueError, match="script would end its element"):
        page.__wrapped__()


def run_node(code: str, folder: Path) -> str:
    """What a module says that Node runs."""
    node = program("node", "nodejs")
    path = folder / "asked.mjs"
    path.write_text(code)
    return subprocess.run([node, path], capture_output=True, text=True, check=True).stdout


def test_the_modules_fit_together(tmp_path: Path) -> None:
    """Put together they are one module that parses: no two of them declare the same name."""
    node = program("node", "nodejs")
    path = tmp_path / "page.mjs"
    path.write_text(PARTS.scripts[1])
    subprocess.run([node, "--check", path], check=True)
    assert not re.search(r"^(import|export) ", PARTS.scripts[1], re.MULTILINE)


def test_the_curve_in_javascript_is_golden(tmp_path: Path) -> None:
    """The page's own maths gives each golden value to a relative 1e-12."""
    rows = golden("curve")["rows"]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    code = f"""
import {{ readFileSync }} from "node:fs";
import {{ expectedSpeedup, expectedTokens }} from "{(WEB / "model.mjs").as_uri()}";
const rows = JSON.parse(readFileSync("{tmp_path / "rows.json"}", "utf8"));
console.log(JSON.stringify(rows.map((r) => [expectedTokens(r.alpha, r.k),
  expectedSpeedup(r.alpha, r.k, r.cost_ratio, r.verify_cost)])));
"""
    found = json.loads(run_node(code, tmp_path))
    assert len(found) == len(rows) == 360
    for (tokens, speedup), row in zip(found, rows, strict=True):
        assert tokens == pytest.approx(row["expected_tokens"], rel=1e-12, abs=0)
        assert speedup == pytest.approx(row["expected_speedup"], rel=1e-12, abs=0)


def test_break_even_and_best_k_by_hand(tmp_path: Path) -> None:
    """With k = 1 and c = 0.2 speculation pays from alpha = 0.2 on; the best k is the smallest of the highest."""
    code = f"""
import {{ breakEven, optimalK }} from "{(WEB / "model.mjs").as_uri()}";
console.log(JSON.stringify([breakEven(1, 0.2, 1), breakEven(4, 1, 1.5), breakEven(0, 0.2, 1),
  optimalK(0.1, 0.2, 1, 16), optimalK(0.7, 0.2, 1, 16), optimalK(1, 0, 1, 16), optimalK(0, 0, 1, 16)]));
"""
    crossing, never, none, *best = json.loads(run_node(code, tmp_path))
    assert crossing == pytest.approx(0.2, abs=1e-12)
    assert (never, none) == (None, None)
    assert (
        best
        == [
            optimal_k(0.1, 0.2),
            optimal_k(0.7, 0.2),
            optimal_k(1.0, 0.0),
            optimal_k(0.0, 0.0),
        ]
        == [0, 3, 16, 0]
    )
