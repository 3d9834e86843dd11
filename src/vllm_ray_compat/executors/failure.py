"""What an executor knows of the death of its workers, and whom it tells.

One behaviour for this package's executors and, as repairs, for vLLM's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)

#: For all executors of the process: held for an assignment only, while the monitor's thread and
#: the engine's may meet.
_lock = threading.Lock()


class Failure:
    """Mixed into an executor that a monitor watches (:class:`..monitor.Watched`)."""

    is_failed: bool = False
    failure: str | None = None
    failure_callback: Callable[[], None] | None = None

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """Have *callback* called once when a worker dies; at once if one already has."""
        with _lock:
            failed = self.is_failed
            if not failed:
                self.failure_callback = callback
        if failed:
            callback()

    def check_alive(self) -> None:
        """Check that no worker has died.

        Raises:
            RuntimeError: one has; the text names its rank and how it died.
        """
        if self.failure is not None:
            raise RuntimeError(f"Executor failed: {self.failure}")

    def note_failure(self, ranks: list[int], cause: str) -> None:
        """Note and log that the workers of *ranks* died of *cause*."""
        failure = f"the worker of rank {', '.join(map(str, ranks))} died ({cause})"
        _logger.error("Shutting the executor down: %s", failure)
        with _lock:
            self.failure, self.is_failed = failure, True

    def tell_of_failure(self) -> None:
        """Call the callback that waits for a failure, once."""
        with _lock:
            callback, self.failure_callback = self.failure_callback, None
        if callback is not None:
            callback()
