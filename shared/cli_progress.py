"""How far runs are, shown on standard error while it is a terminal, and nowhere else."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shared.cli_output import coloured, is_screen
from shared.models import one_line
from shared.results import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Display
    from rich.progress import TaskID


class Bars:
    """A bar for the run under way and, if there are several runs, one for all of them.

    They are wiped when the block ends. An instance can be given to the client as `on_progress`.
    """

    def __init__(self, runs: int = 1) -> None:
        """Draw nothing yet."""
        self._runs, self._done, self._what = runs, 0, ""
        self._all: TaskID | None = None
        self._run: TaskID | None = None
        self._display: Display | None = None
        if is_screen(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Shown
            from rich.theme import Theme

            # The colours of labels are kept for them.
            plain = Theme({"progress.spinner": "none", "progress.elapsed": "none"})
            self._display = Shown(
                SpinnerColumn("line"),  # in ASCII, for any terminal
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[count]}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True, highlight=False, theme=plain),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        """Show the bars."""
        if self._display is not None:
            self._display.start()
            if self._runs > 1:
                self._all = self._display.add_task("all runs", total=self._runs, count=f"0/{self._runs}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wipe them."""
        self.close()

    def close(self) -> None:
        """Wipe the bars; what is shown after that is not."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    def begin(self, what: str) -> None:
        """Show that a run has been asked for, of which nothing is known yet."""
        self._what = one_line(what)
        if self._display is not None:
            self._run = self._display.add_task(f"{self._what}: asking", total=None, count="")

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""
        said = one_line(progress.phase)
        if progress.position:
            said += f", {progress.position} ahead"
        if progress.done is not None and progress.total:
            self._tell(said, f"{progress.done}/{progress.total}", progress.done, progress.total)
        else:
            self._tell(said)

    def say(self, what: str) -> None:
        """Show something in place of how far the run is."""
        self._tell(what)

    def end(self, line: str | None = None) -> None:
        """The run is over; a line about it stays above the bars."""
        self._done += 1
        if self._display is None:
            if line is not None and sys.stderr.isatty():
                print(one_line(line), file=sys.stderr)
            return
        if line is not None:
            self._display.console.print(coloured(one_line(line)), soft_wrap=True)
        if self._run is not None:
            self._display.remove_task(self._run)
            self._run = None
        if self._all is not None:
            self._display.update(self._all, completed=self._done, count=f"{self._done}/{self._runs}")

    def _tell(self, said: str, count: str = "", done: int | None = None, total: int | None = None) -> None:
        if self._display is not None and self._run is not None:
            said = f"{self._what}: {said}"
            self._display.update(self._run, description=said, count=count, completed=done, total=total)
