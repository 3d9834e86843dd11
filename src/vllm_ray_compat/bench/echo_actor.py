"""The actor of Ray's floors."""

from __future__ import annotations

import os


class EchoActor:
    """Answers each message with its size."""

    def echo(self, payload: bytes) -> int:
        """Return the size of *payload* in bytes."""
        return len(payload)

    def process(self) -> int:
        """Return the id of the process this actor lives in."""
        return os.getpid()
