"""The web page at the base path: one answer that holds all it needs, so that a browser asks nobody for anything.

The page's modules are kept apart in `edge/web/` and put together here as a bundler would do it: in the order in which
they need each other, without their imports and exports. One answer instead of a dozen also means that no build's
page ever runs with another build's script, and that a gateway which limits requests lets the whole page through.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shared.labels import BASE_PATH

MODULES: Final = (
    "model.mjs",
    "dom.mjs",
    "charts.mjs",
    "curve.mjs",
    "service.mjs",
    "live.mjs",
    "verify.mjs",
    "result.mjs",
    "receipt.mjs",
    "run.mjs",
    "app.mjs",
)
"""In the order in which they need each other."""

KEPT_S: Final = 300

_WEB: Final = Path(__file__).with_name("web")
_IMPORT: Final = re.compile(r"^import \{[^}]*\} from \"\./([a-z]+\.mjs)\";\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=const |function |async function )", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """The page, and what a browser may do with it.

    Attributes:
        text: HTML.
        policy: Its Content-Security-Policy: its own scripts and styles, by digest (CSP Level 3, section 6.7.3.2).
    """

    text: str
    policy: str


@cache
def page() -> Page:
    """Put the page together.

    Raises:
        ValueError: If a module needs one that does not come before it, or a part would end its element.
    """
    parts = {
        "style": _read("uplot.min.css") + _read("style.css"),
        "plot": f"/*! {_read('uplot.LICENSE')} */\n" + _read("uplot.min.js"),
        "script": _script(),
    }
    for name, part in parts.items():
        if re.search("</(script|style)|<!--", part, re.IGNORECASE):
            raise ValueError(f"the page's {name} would end its element")
    text = _read("index.html").replace("{{base}}", BASE_PATH)
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    scripts = " ".join(_digest(parts[name]) for name in ("plot", "script"))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {_digest(parts['style'])}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(text, policy)


def _script() -> str:
    known: set[str] = set()
    texts = []
    for name in MODULES:
        text = _read(name)
        if missing := set(_IMPORT.findall(text)) - known:
            raise ValueError(f"{name} comes before {min(missing)}, which it needs")
        known.add(name)
        texts.append(_EXPORT.sub("", _IMPORT.sub("", text)))
    return "\n".join(texts)


def _read(name: str) -> str:
    return (_WEB / name).read_text("utf-8")


def _digest(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode('utf-8')).digest()).decode('ascii')}'"
