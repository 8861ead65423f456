"""`python -m tools.docs`, and that the documentation says what the code says."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.settings import AgentSettings
from edge.openapi import document
from edge.runbooks import runbook
from edge.settings import EdgeSettings
from shared.curve import accounting_modeled
from shared.labels import ENERGY_CODES
from shared.wire import ErrorCode
from tools import docs, docs_cli
from tools.docs_text import kind, table

ROOT = Path(__file__).parents[2]
SCALE = float(os.environ.get("SPECDEC_TEST_TIMEOUT_SCALE", "1"))
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
PAGES["README.md"] = (ROOT / "README.md").read_text("utf-8")


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading of the second level."""
    parts = re.split(r"^## (.+)\n", PAGES[page], flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_generated_parts_are_up_to_date() -> None:
    """What is committed is what the code gives now; else run `python -m tools.docs`."""
    assert [str(path.relative_to(ROOT)) for path, _ in docs.outdated()] == []


@pytest.mark.parametrize("name", docs.PARTS)
def test_every_part_is_used(name: str) -> None:
    """No part is generated for nobody."""
    assert any(f"<!-- generated: {name} -->" in text for text in PAGES.values())


def test_check_and_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check names what is out of date and writes nothing; without it all is written, once."""
    for name in ("README.md", "Makefile"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    assert docs.main(["--check"]) == 0
    cli, readme = tmp_path / "docs/reference/cli.md", tmp_path / "README.md"
    cli.unlink()
    stale = readme.read_text("utf-8").replace("| `GET /keys` |", "| `GET /locks` |")
    readme.write_text(stale, "utf-8")
    assert docs.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert re.findall(r"docs: (\S+) is out of date", said) == ["docs/reference/cli.md", "README.md"]
    assert not cli.exists() and readme.read_text("utf-8") == stale
    assert docs.main([]) == 0
    assert capsys.readouterr().out == "wrote docs/reference/cli.md\nwrote README.md\n"
    assert cli.read_text("utf-8") == PAGES["docs/reference/cli.md"]
    assert readme.read_text("utf-8") == PAGES["README.md"]
    assert docs.main(["--check"]) == 0
    readme.write_text("<!-- generated: nothing -->\n<!-- end -->\n", "utf-8")
    assert docs.main([]) == 2
    assert "README.md: <!-- generated: nothing --> names no part" in capsys.readouterr().err


def test_parts_between_markers() -> None:
    """A part is put between its markers and everything else stays; a marker that is broken is refused."""
    text = "a\n<!-- generated: routes -->\nold\n<!-- end -->\nb\n"
    filled = docs.filled(text)
    assert filled.startswith("a\n<!-- generated: routes -->\n| route | answer |\n")
    assert filled.endswith("|\n<!-- end -->\nb\n") and "old" not in filled
    assert docs.filled(filled) == filled
    for broken in (
        "<!-- generated: routes -->\n",
        "<!-- end -->\n",
        "<!-- generated: Routes -->\n<!-- end -->\n",
    ):
        with pytest.raises(docs.DocsError):
            docs.filled(broken)


def programs() -> Iterator[tuple[str, docs_cli.Main, list[str]]]:
    """Yield each command with what runs it: its name, the program, and its words."""
    for main, argv in docs_cli.PROGRAMS:
        parser = docs_cli.parser_of(main, argv)
        yield docs_cli.name(parser), main, argv
        for sub, _ in docs_cli.commands(parser):
            yield docs_cli.name(sub), main, [*argv, docs_cli.name(sub).split()[-1]]


@pytest.mark.parametrize(("name", "main", "argv"), [pytest.param(*each, id=each[0]) for each in programs()])
def test_every_option_of_the_help_is_in_the_reference(
    name: str,
    main: docs_cli.Main,
    argv: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each option that `--help` prints has a row of its own, and none is made up."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--help"])
    assert ended.value.code == 0
    printed = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE)) - {
        "--help"
    }
    told = set(re.findall(r"^\| `(--[a-z][a-z-]*)", sections("docs/reference/cli.md")[name], re.MULTILINE))
    assert told == printed


def test_the_reference_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on the variables of whoever generates it."""
    page = docs_cli.page()
    for columns, url, colour in (("40", "http://elsewhere", "1"), ("300", "", "")):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("SPECDEC_URL", url)
        monkeypatch.setenv("FORCE_COLOR", colour)
        assert docs_cli.page() == page


def made_up() -> argparse.ArgumentParser:
    """Return a parser with everything that a parser can have."""
    parser = argparse.ArgumentParser(prog="x", description="does things", epilog="%(prog)s is 5 % better")
    parser.add_argument("--version", action="version", version="1")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("-j", "--json", action="store_true", help="a|b")
    one.add_argument("--plot", nargs="?", metavar="FILE", help="draw (default: %(default)s)", default="x.svg")
    parser.add_argument("--shape", choices=("a", "b"), required=True, help="which")
    parser.add_argument("--two-words", type=int)
    parser.add_argument("--pair", nargs=2, metavar=("A", "B"), help="two")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    subs = parser.add_subparsers(metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter
    sub = subs.add_parser(
        "go", aliases=["g"], help="it goes", epilog="examples:\n  x go", formatter_class=raw
    )
    sub.add_argument("what", nargs="+", help="what goes")
    return parser


WANTED = """## x

Does things.

```text
x --shape {a,b} [OPTION ...] COMMAND ...
```

| argument | says |
| --- | --- |
| `--version` | show program's version number and exit |
| `-j, --json` | a\\|b; not with `--plot` |
| `--plot [FILE]` | draw (default: x.svg); not with `-j` |
| `--shape {a,b}` | which; required |
| `--two-words TWO_WORDS` | – |
| `--pair A B` | two |

| command | does |
| --- | --- |
| `x go` | it goes |

X is 5 % better.

## x go

It goes.

```text
x go what [what ...]
```

| argument | says |
| --- | --- |
| `what [what ...]` | what goes |

```text
examples:
  x go
```
"""


def test_parser_in_words() -> None:
    """Whatever a parser may say is laid out: values, what is required, what excludes what, commands, examples."""

    def main(argv: Any) -> int:
        made_up().parse_args(argv)
        return 0

    parser = docs_cli.parser_of(main, [])
    assert "\n".join(docs_cli._sections(parser)) == WANTED
    with pytest.raises(TypeError):
        docs_cli.parser_of(lambda argv: 0, [])


@pytest.mark.parametrize(("model", "title"), [(EdgeSettings, "The edge"), (AgentSettings, "The agent")])
def test_every_setting_is_described(model: Any, title: str) -> None:
    """The reference has each setting with what it may be, its default and what it says."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in sections("docs/reference/settings.md")[title].splitlines()
        if line.startswith("| `")
    ]
    assert [row[0].partition(",")[0].strip("`") for row in rows] == [
        f"SPECDEC_{name.upper()}" for name in model.model_fields
    ]
    for (_, may_be, _, says), field in zip(rows, model.model_fields.values(), strict=True):
        assert may_be not in ("", "–", "anything") and says == field.description
        assert says.endswith((".", ")."))


def test_defaults_and_flags_of_settings() -> None:
    """Some rows as they must be, for there to be something that the generator cannot get wrong in silence."""
    page = PAGES["docs/reference/settings.md"]
    assert "| `SPECDEC_K` | integer, 1 to 16 | `4` |" in page
    assert "| `SPECDEC_SIGNER` | `none`, `kms` or `file` | `none` |" in page
    assert "| `SPECDEC_TOWER_TOKEN`, `--token-file` | secret text | – |" in page
    assert "| `SPECDEC_PORT`, `--port` | integer, 0 to 65535 | `8765` |" in page
    assert "| `SPECDEC_THREADS` | integer, 1 to 1024 | – |" in page


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/components/schemas/Keys"}, "[Keys](#keys)"),
        ({"const": "MEASURED"}, '`"MEASURED"`'),
        ({"enum": ["a", "b", 3]}, '`"a"`, `"b"` or `3`'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "integer"}]}, "integer or null"),
        ({"allOf": [{"$ref": "#/components/schemas/A"}, {"type": "object"}]}, "[A](#a) and object"),
        ({"type": ["number", "null"], "minimum": 0, "maximum": 1}, "number, 0 to 1 or null"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, "number above 0, at most 2.5"),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
            "list of 2: true or false",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
            "list of 1 to 3: string",
        ),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({"type": "string", "pattern": "^[0-9a-f]{64}$"}, "64 hex digits"),
        ({"type": "string", "pattern": "^x$"}, "string like `^x$`"),
        ({"type": "string", "pattern": "^x$", "description": "an x"}, "string"),
        ({"type": "string", "format": "date-time", "pattern": "^Z$"}, "UTC time"),
        ({"type": "string", "minLength": 1, "maxLength": 9}, "string, 1 to 9 characters"),
        ({"type": "string", "contentEncoding": "base64"}, "base64"),
        ({"properties": {"a": {"type": "integer"}}}, "object of `a` (integer)"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object, each value: number"),
        ({"type": "object", "additionalProperties": False}, "object"),
        ({}, "anything"),
    ],
)
def test_schema_in_words(schema: dict[str, Any], words: str) -> None:
    """What a schema allows is said."""
    assert kind(schema) == words


def test_table() -> None:
    """Bars and line breaks in a cell do not break the table, and an empty cell shows that it is."""
    assert (
        table(("a", "b"), [("x|y", "1\n2"), ("", " ")])
        == "| a | b |\n| --- | --- |\n| x\\|y | 1 2 |\n| – | – |\n"
    )


def test_the_reference_has_every_route_and_schema() -> None:
    """Each operation with its statuses and parameters, each schema with its fields, and no link leads nowhere."""
    page, found = PAGES["docs/reference/api.md"], sections("docs/reference/api.md")
    api = document(EdgeSettings())
    for path, item in api["paths"].items():
        for method, operation in item.items():
            section = found[f"{method.upper()} {path}"]
            assert operation["summary"] in section
            for status in operation["responses"]:
                assert f"| `{status}` |" in section
            for parameter in operation.get("parameters", []):
                assert f"| `{parameter['name']}` |" in section
    for name, schema in api["components"]["schemas"].items():
        (section,) = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
        for each in schema.get("properties", {}):
            assert f"| `{each}` |" in section
    slugs = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= slugs


def test_every_code_is_told_with_what_to_do() -> None:
    """Those of runs with their whole runbook, and those of energy."""
    page = PAGES["docs/reference/codes.md"]
    for code in ErrorCode:
        (row,) = re.findall(rf"^\| `{code}` \|.*$", page, re.MULTILINE)
        for step in runbook(code):
            assert step.replace("|", "\\|").rpartition(": ")[2] in row
    for energy_code in ENERGY_CODES:
        assert f"| `{energy_code}` |" in page


def test_the_curve_of_the_mathematics() -> None:
    """The table of the explanation is what the code gives."""
    block = accounting_modeled(4, 0.2)
    for alpha, tokens in block["expected_tokens_per_step_at_alpha"].items():
        row = f"| {alpha} | {tokens} | {block['expected_speedup_at_alpha'][alpha]} |"
        assert row in PAGES["docs/explanation/maths.md"]


COMMAND = re.compile(r"(?:^|[ /])((?:specdec|python -m (?:agent|edge)[a-z.]*)(?= |$)[^|&#;>]*)")


def commands_in(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each command of ours in the shell blocks and code spans of a page, and the options that it is given."""
    names = sorted((name for name, _, _ in programs()), key=len, reverse=True)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in "\n".join([*blocks, *spans]).replace("\\\n", " ").splitlines():
        for written in COMMAND.findall(re.sub(r'"[^"]*"', "TEXT", line)):
            yield (
                next(name for name in names if f"{written} ".startswith(f"{name} ")),
                set(re.findall(r"(?<= )--[a-z][a-z-]*", written)),
            )


def test_options_in_commands_exist() -> None:
    """Each option of a command of ours in README or docs/ is one that the command takes."""
    reference = {
        name: {"--help", *re.findall(r"^\| `(--[a-z][a-z-]*)", text, re.MULTILINE)}
        for name, text in sections("docs/reference/cli.md").items()
    }
    reference["python -m agent selfcheck"] |= reference["python -m agent"]
    seen = 0
    for page, text in PAGES.items():
        for name, options in commands_in(text):
            assert options <= reference[name], (page, name, options)
            seen += len(options)
    assert seen > 30


def test_targets_of_make_exist() -> None:
    """Each `make TARGET` in README or docs/ is in the Makefile."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for name, text in PAGES.items():
        code = re.findall(r"`([^`\n]+)`", text) + re.findall(
            r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
        for target in re.findall(r"(?:^|sudo |\d )make (\w+)", "\n".join(code), re.MULTILINE):
            assert target in targets, (name, target)


def test_links_of_readme_lead_somewhere() -> None:
    """Each link to a file of the project names one that is there, and a heading in it, if it names one."""
    links = re.findall(r"\]\(((?!https?:)[^)]+)\)", PAGES["README.md"])
    assert len(links) > 10
    for link in links:
        path, _, heading = link.partition("#")
        assert (ROOT / path).is_file(), link
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
        assert not heading or heading in {
            re.sub(r"[^\w-]", "", one.lower().replace(" ", "-")) for one in headings
        }


@pytest.mark.slow
def test_pages_build_without_a_warning_and_without_a_network(tmp_path: Path) -> None:
    """Sphinx finds nothing wrong, and the pages load nothing from elsewhere."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "--fail-on-warning",
            "--keep-going",
            "--quiet",
            "docs",
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
        timeout=120 * SCALE,
    )
    assert (built.returncode, built.stderr) == (0, "")
    pages = {str(path.relative_to(tmp_path).with_suffix(".md")) for path in tmp_path.rglob("*.html")}
    assert pages >= {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")}
    for path in tmp_path.rglob("*.html"):
        text = path.read_text("utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text), path
        assert not re.search(
            r'<link[^>]+rel="(?:stylesheet|preload|preconnect)"[^>]+href="(?:https?:)?//', text
        ), path
        assert "&lt;!--" not in text  # markers do not show
