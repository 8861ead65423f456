"""The reference of the commands, from their own argument parsers.

What a command's help says is taken from the parser and not from the printed help: how that is laid out depends on the
terminal and on Python's version, and the words do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

import agent.__main__
import agent.engines.__main__
import agent.sweep
import edge.__main__
import shared.cli
from tools.docs_text import NOTE, table

Main = Callable[[Sequence[str]], int]

SPECDEC: Final[tuple[Main, list[str]]] = (shared.cli.main, [])
PROGRAMS: Final[list[tuple[Main, list[str]]]] = [
    SPECDEC,
    (agent.__main__.main, []),
    (agent.__main__.main, ["install"]),
    (agent.__main__.main, ["uninstall"]),
    (agent.__main__.main, ["token"]),
    (agent.__main__.main, ["selfcheck"]),
    (agent.sweep.main, []),
    (agent.engines.__main__.main, []),
    (edge.__main__.main, []),
]
"""Each program, and the words on its command line that lead to a parser of its own."""

_HEAD: Final = """# Commands

What `--help` says, of every command. The commands are in the environment that `make setup` makes:
`.venv/bin/specdec`, `.venv/bin/python -m agent`, `.venv/bin/python -m edge`.

Exit codes: 0, done. 1, the service or a check failed, nothing could be measured, or the agent could not start. 2, bad
input or a wrong setting, told in one line on standard error; whatever keeps `python -m edge` from starting is a 2, too.

"""


class _Caught(BaseException):
    """Carries a parser out of a program that was about to use it; no `except Exception` may stop it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(main: Main, argv: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the parser with which a program reads its command line, wherever it makes it.

    Raises:
        TypeError: If the program reads none.
    """

    def catch(self: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        raise _Caught(self)

    with patch.object(argparse.ArgumentParser, "parse_known_args", catch):
        try:
            main(argv)
        except _Caught as caught:
            return caught.parser
    raise TypeError(f"{main.__module__} reads no command line")


def page() -> str:
    """Returns the page."""
    return (
        NOTE + _HEAD + "\n".join(text for main, argv in PROGRAMS for text in _sections(parser_of(main, argv)))
    )


def summary() -> str:
    """Returns the table of the `specdec` commands."""
    parser = parser_of(*SPECDEC)
    return table(("command", "does"), [(f"`{name(sub)}`", about) for sub, about in commands(parser)])


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yields the parsers of a program's commands, and what each is for, in one line."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}
            seen: set[int] = set()
            for word, sub in action.choices.items():
                if id(sub) not in seen and told.get(word) != argparse.SUPPRESS:
                    seen.add(id(sub))
                    yield sub, told.get(word, "")


def name(parser: argparse.ArgumentParser) -> str:
    """Returns what a program is called, on one line."""
    return " ".join(parser.prog.split())


def _sections(parser: argparse.ArgumentParser, about: str = "") -> Iterator[str]:
    parts = [
        f"## {name(parser)}\n",
        _prose(parser, parser.description or about),
        f"```text\n{usage(parser)}\n```\n",
    ]
    rows = [(f"`{spelling(action)}`", _said(parser, action)) for action in _told(parser)]
    subs = list(commands(parser))
    if rows:
        parts.append(table(("argument", "says"), rows))
    if subs:
        parts.append(table(("command", "does"), [(f"`{name(sub)}`", text) for sub, text in subs]))
    parts.append(_prose(parser, parser.epilog or ""))
    yield "\n".join(filter(None, parts))
    for sub, text in subs:
        yield from _sections(sub, text)


def _prose(parser: argparse.ArgumentParser, text: str) -> str:
    """Returns a description or an epilog as it is meant: laid out already, or a paragraph."""
    text = text.replace("%(prog)s", name(parser)).strip("\n")
    if not text.strip():
        return ""
    formatter = parser._get_formatter()
    if isinstance(formatter, argparse.RawDescriptionHelpFormatter) and "\n" in text:
        return f"```text\n{text}\n```\n"
    text = " ".join(text.split())
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}\n"


def _told(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the arguments that the help tells of, but for --help and the commands."""
    silent = (argparse._HelpAction, argparse._SubParsersAction)
    return [a for a in parser._actions if not isinstance(a, silent) and a.help != argparse.SUPPRESS]


def usage(parser: argparse.ArgumentParser) -> str:
    """Returns a program's usage: what must be given, and whether more may be."""
    told = _told(parser)
    needed = [spelling(action) for action in told if action.option_strings and action.required]
    words = [spelling(action) for action in told if not action.option_strings]
    optional = any(action.option_strings and not action.required for action in told)
    command = ["COMMAND", "..."] if any(commands(parser)) else []
    return " ".join([name(parser), *needed, *(["[OPTION ...]"] * optional), *words, *command])


def spelling(action: argparse.Action) -> str:
    """Returns how an argument is written: its names and what follows them."""
    value = _value(action)
    if not action.option_strings:
        return value
    return ", ".join(f"{flag} {value}".strip() for flag in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    word = action.metavar
    if word is None:
        choices = None if action.choices is None else [str(choice) for choice in action.choices]
        word = "{" + ",".join(choices) + "}" if choices else action.dest
        if action.option_strings and not choices:
            word = word.upper()
    return {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} [{word} ...]"}.get(str(action.nargs), word)


def _said(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": name(parser)}
    text = (action.help or "") % {
        key: value for key, value in values.items() if value is not argparse.SUPPRESS
    }
    notes = ["required"] if action.option_strings and action.required else []
    for group in parser._mutually_exclusive_groups:
        others = [other.option_strings[0] for other in group._group_actions if other is not action]
        if action in group._group_actions and others:
            notes.append(f"not with {', '.join(f'`{other}`' for other in others)}")
    return "; ".join([text, *notes])
