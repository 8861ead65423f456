"""`python -m tools.docs`: writes what of the documentation follows from the code; `--check` tells what is out of date.

Whole pages are in `PAGES`. In other Markdown files a part may be generated, too: what stands between a line
`<!-- generated: NAME -->` and the next line `<!-- end -->` is `PARTS[NAME]`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from edge.openapi import document
from edge.settings import EdgeSettings
from tools import docs_api, docs_cli, docs_codes, docs_settings
from tools.docs_text import table

ROOT: Final = Path(__file__).parents[1]

_MARKED: Final = re.compile(
    r"(^<!-- generated: ([a-z-]+) -->\n)(.*?)(^<!-- end -->$)", re.MULTILINE | re.DOTALL
)
_MARK: Final = re.compile(r"^<!-- (?:generated\b.*|end) -->$", re.MULTILINE)
_TARGET: Final = re.compile(r"^(\w+):[^#\n]*## (.+)$", re.MULTILINE)


class DocsError(Exception):
    """A marker cannot be understood; the message says which, in one line."""


@cache
def _api() -> dict[str, Any]:
    return document(EdgeSettings())


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/reference/api.md": lambda: docs_api.page(_api()),
    "docs/reference/cli.md": docs_cli.page,
    "docs/reference/codes.md": docs_codes.page,
    "docs/reference/settings.md": docs_settings.page,
}
"""Files that are generated whole, below the project's folder."""


def make_targets() -> str:
    """Returns the table of the Makefile's targets."""
    text = (ROOT / "Makefile").read_text("utf-8")
    return table(("command", "does"), [(f"`make {name}`", about) for name, about in _TARGET.findall(text)])


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "agent-settings": docs_settings.agent_summary,
    "commands": docs_cli.summary,
    "make": make_targets,
    "routes": lambda: docs_api.routes(_api()),
    "run-fields": lambda: docs_api.run_fields(_api()),
}
"""Parts of files, by the name in their marker."""


def filled(text: str) -> str:
    """Returns a Markdown text with its generated parts written anew.

    Raises:
        DocsError: If a marker names no part, or stands alone.
    """

    def part(match: re.Match[str]) -> str:
        if match[2] not in PARTS:
            raise DocsError(f"<!-- generated: {match[2]} --> names no part; there are: {', '.join(PARTS)}")
        return f"{match[1]}{PARTS[match[2]]()}{match[4]}"

    left = _MARK.search(_MARKED.sub("", text))
    if left is not None:
        raise DocsError(f"{left[0]} has no other end, or no such name")
    return _MARKED.sub(part, text)


def wanted(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yields each file with generated text and what should be in it.

    Raises:
        DocsError: If a marker cannot be understood.
    """
    pages = {root / name: make for name, make in PAGES.items()}
    for path, make in pages.items():
        yield path, make()
    for path in sorted([root / "README.md", *(root / "docs").rglob("*.md")]):
        if path in pages or not path.is_file():
            continue
        text = path.read_text("utf-8")
        try:
            yield path, filled(text)
        except DocsError as error:
            raise DocsError(f"{path.relative_to(root)}: {error}") from None


def outdated(root: Path = ROOT) -> list[tuple[Path, str]]:
    """Returns the files that are not what they should be, with what they should be.

    Raises:
        DocsError: If a marker cannot be understood.
    """
    return [
        (path, text) for path, text in wanted(root) if not path.is_file() or path.read_text("utf-8") != text
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program: 0 if all is up to date (now), 1 if something was not, with --check, 2 for a bad marker."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.docs", description="Writes the generated parts of README.md and docs/."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if something is out of date"
    )
    check: bool = parser.parse_args(argv).check
    try:
        found = outdated(ROOT)
    except DocsError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 2
    for path, text in found:
        name = path.relative_to(ROOT)
        if check:
            print(f"docs: {name} is out of date: python -m tools.docs", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {name}")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
