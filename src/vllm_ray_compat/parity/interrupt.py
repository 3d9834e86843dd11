"""Ctrl-C, SIGTERM and SIGHUP during a run: noted at once, acted on where it is safe.

A handler that raises can interrupt any line, also one that cleans up, and a second Ctrl-C would
then leave processes behind. Here a signal only sets a flag; the loops that wait ask for it, and
clean-up, which takes seconds, does not.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(BaseException):
    """The run was asked to stop. Not an ``Exception``: only the command line handles it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class StopRequest:
    """Catches the signals that ask a run to stop; a context manager.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            with contextlib.suppress(TypeError):  # a handler that was not set from Python
                signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._signum = signum

    def check(self) -> None:
        """Raise if the run was asked to stop.

        Raises:
            InterruptedRunError: it was.
        """
        if self._signum is not None:
            raise InterruptedRunError(self._signum)
