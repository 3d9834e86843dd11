"""The processes of a floor: started, waited for and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from vllm_ray_compat.parity import guard

#: What an echo process writes on its standard output when it listens.
READY = b"ready\n"
_END_WITHIN_S = 5.0


class EchoDiedError(Exception):
    """An echo process has ended, or does not answer; the text says which."""


class EchoProcesses:
    """Processes of one module, each with its own arguments; they end when this process does.

    ``guard`` sees to that when nobody here can: the kernel sends them SIGTERM.
    """

    def __init__(
        self, module: str, arguments: Sequence[Sequence[str]], pass_fds: Sequence[int] = ()
    ) -> None:
        """Start a process for each of *arguments*, and wait until all of them listen.

        Args:
            module: what each runs.
            arguments: the arguments of each.
            pass_fds: open files they inherit.

        Raises:
            EchoDiedError: one ended instead.
        """
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for one in arguments:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, str(guard.__file__), module, *one],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        pass_fds=pass_fds,
                    )
                )
            for process in self._processes:
                if _pipe(process.stdout).readline() != READY:
                    raise EchoDiedError(
                        f"An echo process of {module} ended before it listened, with exit code "
                        f"{process.wait()}."
                    )
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Their process ids, in the order of their arguments."""
        return [process.pid for process in self._processes]

    def wake(self) -> None:
        """Write a byte on the standard input of each.

        Raises:
            EchoDiedError: one has ended.
        """
        for process in self._processes:
            try:
                os.write(_pipe(process.stdin).fileno(), b"\n")
            except BrokenPipeError:
                raise EchoDiedError(f"Echo process {process.pid} has ended.") from None

    def check(self) -> None:
        """Check that all of them live.

        Raises:
            EchoDiedError: one does not.
        """
        for process in self._processes:
            if (code := process.poll()) is not None:
                raise EchoDiedError(f"Echo process {process.pid} ended with exit code {code}.")

    def close(self) -> None:
        """End them. Idempotent."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _pipe(process.stdin).close()
            _pipe(process.stdout).close()
        self._processes.clear()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # all are started with pipes
    return stream
