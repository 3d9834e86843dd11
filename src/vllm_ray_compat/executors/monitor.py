"""Watch the workers of a Ray executor and tell it when one dies."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import ray

from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)

#: Seconds between two looks. Ray answers at once when a worker dies; this only bounds how long
#: a clean shutdown waits for the thread (upstream's five seconds show in every shutdown).
_PERIOD_S = 0.25


class Watched(Protocol):
    """What the monitor needs of an executor."""

    def on_worker_death(self, ranks: list[int], cause: str) -> None:
        """Called once, in the monitor's thread."""


class Monitor(Protocol):
    """What is left to do with a monitor once it watches."""

    def silence(self) -> None:
        """Report nothing from now on."""

    def stop(self) -> None:
        """Stop watching, and wait until it has. Idempotent."""


class WorkerMonitor:
    """A thread that waits for the end of tasks that only end when their worker dies."""

    def __init__(self, executor: Watched, run_refs: Mapping[int, Any]) -> None:
        """Start watching.

        Args:
            executor: told of a death; held weakly, so that it can still be collected.
            run_refs: rank -> reference of a task of the worker that never ends on its own.
        """
        self._executor = weakref.ref(executor)
        self._rank_of = {ref: rank for rank, ref in run_refs.items()}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="RayCompatMonitor")
        self._thread.start()

    def silence(self) -> None:
        """Report nothing from now on: the workers are about to be ended on purpose."""
        self._stopped.set()

    def stop(self) -> None:
        """Stop watching and wait for the thread (unless called by it). Idempotent.

        Must come before Ray is shut down: the thread may be inside ``ray.wait``.
        """
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        refs = list(self._rank_of)
        while not self._stopped.is_set() and ray.is_initialized():
            try:
                done, _ = ray.wait(refs, num_returns=1, timeout=_PERIOD_S)
            except Exception:
                # Ray is going away under us, or its client broke: nothing left to watch with.
                if not self._stopped.is_set():
                    _logger.exception("The worker monitor lost its connection to Ray")
                return
            if not done or self._stopped.is_set():
                continue
            ranks = sorted(self._rank_of[ref] for ref in done)
            executor = self._executor()
            if executor is not None:
                executor.on_worker_death(ranks, _failure(done[0]) or "its loop ended")
            return


class PingMonitor:
    """Watch actors that have no task which lasts as long as they live: ask each again and again.

    A question to a dead actor fails at once; one to a busy actor just stays open. Ray itself has
    every actor answer it, so vLLM's own can be watched, too.
    """

    #: Seconds between two rounds of questions: each costs the workers some work.
    _PAUSE_S = 0.4

    def __init__(self, executor: Watched, actors: Mapping[int, Any]) -> None:
        """Start watching *actors* (rank -> actor); *executor* is held weakly."""
        self._executor = weakref.ref(executor)
        self._actors = dict(actors)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="RayCompatMonitor")
        self._thread.start()

    def silence(self) -> None:
        """Report nothing from now on: the workers are about to be ended on purpose."""
        self._stopped.set()

    def stop(self) -> None:
        """Stop watching and wait for the thread (unless called by it). Idempotent."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        rank_of: dict[Any, int] = {}
        idle = dict(self._actors)
        while not self._stopped.is_set() and ray.is_initialized():
            try:
                rank_of.update({actor.__ray_ready__.remote(): rank for rank, actor in idle.items()})
                idle = {}
                done, _ = ray.wait(list(rank_of), num_returns=len(rank_of), timeout=_PERIOD_S)
            except Exception:
                if not self._stopped.is_set():
                    _logger.exception("The worker monitor lost its connection to Ray")
                return
            for ref in done:
                rank = rank_of.pop(ref)
                cause = _failure(ref)
                if cause is not None and not self._stopped.is_set():
                    if (executor := self._executor()) is not None:
                        executor.on_worker_death([rank], cause)
                    return
                idle[rank] = self._actors[rank]
            self._stopped.wait(self._PAUSE_S)


def _failure(ref: Any) -> str | None:
    try:
        ray.get(ref, timeout=1)
    except Exception as error:  # the error is the answer
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    return None
