"""What a run shows while it works: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


class PipeConsole(Console):
    """A console that raises ``BrokenPipeError`` when nobody reads any more, instead of exiting."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error; rich itself would end the process here."""
        raise BrokenPipeError


class Display:
    """Shows the steps of a run on *console*; a context manager.

    Args:
        console: where to; standard error, so that standard output stays the result.
        steps: how many steps the run has.
    """

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._began = time.monotonic()
        self._label = ""
        self._progress: Progress | None = None
        self._task = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=steps)

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, label: str) -> None:
        """Begin a step; what :meth:`now` says belongs to it."""
        self._label = label
        self.now("starting")

    def now(self, what: str) -> None:
        """Say what the current step is doing."""
        text = f"{self._label}: {what}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text)
        else:
            self._line(text)

    def done(self, how: str) -> None:
        """End the current step; the line stays on the screen."""
        text = f"{self._label}: {how}"
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
        self._line(text)

    def _line(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        line = f"[{elapsed:6.1f} s] {text}"
        # Nobody may be reading any more (`2>&1 | head`): that ends the display, not the run.
        with contextlib.suppress(OSError):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
