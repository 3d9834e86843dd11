"""What checks look at: the options, the environment, and what is found out once for all of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

from vllm_ray_compat.doctor.checks import Need
from vllm_ray_compat.doctor.look import Look, look
from vllm_ray_compat.errors import RaycompatError
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import Decision, select


@dataclass(frozen=True)
class Options:
    """What was asked for.

    Attributes:
        tensor_parallel_size: of the engine in question; None: not said.
        pipeline_parallel_size: the same.
        ray_address: the cluster to look at; None: RAY_ADDRESS, or the one of this machine.
        timeout_s: seconds that looking at the cluster may take.
        log: an open log, and its name.
    """

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    ray_address: str | None = None
    timeout_s: float = 30.0
    log: tuple[BinaryIO, str] | None = None

    @property
    def world_size(self) -> int | None:
        """The number of ranks; None when no size was given."""
        if self.tensor_parallel_size is None and self.pipeline_parallel_size is None:
            return None
        return self.tp * (self.pipeline_parallel_size or 1)

    @property
    def tp(self) -> int:
        """The tensor parallel size, 1 when it was not given."""
        return self.tensor_parallel_size or 1


class Context:
    """What checks are given."""

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        needs: Iterable[Need] = (),
        looks: Callable[..., Look] = look,
    ) -> None:
        """Prepare; nothing is looked at before it is asked for.

        Args:
            options: see there.
            environ: the environment in question.
            needs: of all checks that will run: whether nodes must be probed.
            looks: for tests.
        """
        self.options = options
        self.environ = environ
        self._probes = Need.PROBES in set(needs)
        self._looks = looks

    @cached_property
    def _decided(self) -> Decision | RaycompatError:
        try:
            return select(environ=self.environ)
        except RaycompatError as error:
            return error

    @property
    def undecided(self) -> str | None:
        """Why there is no decision, or None."""
        return str(self._decided) if isinstance(self._decided, RaycompatError) else None

    @property
    def decision(self) -> Decision:
        """What serves ``"ray"`` here.

        Raises:
            RaycompatError: nothing can be said; a check that needs it is not run then.
        """
        if isinstance(self._decided, RaycompatError):
            raise self._decided
        return self._decided

    @property
    def backend(self) -> Backend | None:
        """The executor of this environment, None where it cannot be told."""
        return None if self.undecided else self.decision.backend

    @cached_property
    def ray_version(self) -> str | None:
        """The release of Ray installed here, read without importing it."""
        try:
            return importlib.metadata.version("ray")
        except importlib.metadata.PackageNotFoundError:
            return None

    @cached_property
    def cluster(self) -> Look:
        """What was seen of the Ray cluster; the first use takes seconds."""
        return self._looks(
            self.options.ray_address,
            self.environ,
            probes=self._probes,
            timeout_s=self.options.timeout_s,
        )

    def missing(self, need: Need) -> str | None:
        """Return why *need* is not met, or None."""
        if need is Need.DECISION:
            return self.undecided
        if need is Need.LOG:
            return None if self.options.log is not None else "no --log FILE was given"
        if self.ray_version is None:
            return "Ray is not installed in this Python environment"
        if self.cluster.view is None:
            return self.cluster.unreachable or "the cluster could not be looked at"
        return None
