"""What a Compiled Graph executor holds outside its own process.

For this package's own executor and, as a repair, for vLLM's.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from vllm_ray_compat.executors.resources import Resources

#: Seconds the graph gets to stop before the actors are killed all the same.
_TEARDOWN_S = 0.8


class GraphResources(Resources):
    """And the compiled graph."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: Any = None

    def stop_work(self, *, graceful: bool) -> None:
        """Stop the graph; without it the workers wait in its channels for ever."""
        if self.graph is None:
            return
        # It waits for its workers, and one of them may be frozen.
        thread = threading.Thread(target=_tear_down, args=[self.graph], daemon=True)
        thread.start()
        if graceful:
            thread.join(_TEARDOWN_S)

    def close(self) -> None:
        """Forget the graph: its references keep Ray's channels."""
        self.graph = None


def _tear_down(graph: Any) -> None:
    with contextlib.suppress(Exception):  # the actors are killed next in any case
        graph.teardown()
