"""The `specdec` command: ask the service, check a receipt. Every number is printed with its label.

Each command has a module of its own, `shared.cli_<command>`; what is here holds them together.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from shared import cli_curve, cli_health, cli_pair, cli_run, cli_sweep, cli_verify
from shared.errors import SpecdecError

_EPILOG: Final = """\
exit codes:
  0    done; an answer without a measurement is an answer, too
  1    the service or a check failed, or a sweep measured nothing
  2    bad input
  130  interrupted by Ctrl-C; the run under way is cancelled on the tower

environment:
  SPECDEC_URL  the service, where --url is not given
  NO_COLOR     if set, no colours

The answer goes to standard output, progress and errors to standard error. Into a pipe goes plain text.
Completion, for bash: specdec --print-completion bash > ~/.local/share/bash-completion/completions/specdec

example: specdec run "And it came to pass" --url http://127.0.0.1:8080
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; bad options exit with 2 as argparse does."""
    args = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot print a character must not end the run
            stream.reconfigure(errors="backslashreplace")
    try:
        code = int(args.command(args))
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return code
    except SpecdecError as error:
        print(f"specdec: {error}", file=sys.stderr)
        return 2 if error.code == "BAD_INPUT" else 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # whose reader, such as `head`, has seen enough
            print(f"specdec: the answer cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the end would try it again
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specdec",
        description="Does speculative decoding pay, and is it so?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help="print the completion script of a shell",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (cli_health, cli_pair, cli_curve, cli_run, cli_sweep, cli_verify):
        command.add(commands)
    return parser


class _PrintCompletion(argparse.Action):
    """Prints the script; files and folders are completed where an option's metavar says that it takes one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print and exit."""
        import shtab

        kinds = {"FILE": shtab.FILE, "PEM": shtab.FILE, "RECEIPT": shtab.FILE, "DIR": shtab.DIRECTORY}
        for action in _actions(parser):
            if isinstance(action.metavar, str) and action.metavar in kinds:
                action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
        print(shtab.complete(parser, values))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All options of the parser and of its commands."""
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += _actions(command)
    return found


if __name__ == "__main__":
    sys.exit(main())
