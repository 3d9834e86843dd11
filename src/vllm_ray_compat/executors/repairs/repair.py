"""What a repair of an executor that vLLM ships is, and which of them apply to a release.

Imports nothing of vLLM or Ray: ``status`` reads the table, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from vllm_ray_compat.errors import RaycompatError
from vllm_ray_compat.schedule import RELEASES, SCHEDULE, Backend, row_for


class Mixin:
    """Base of the classes that a repair puts before vLLM's own in the order of methods.

    A method calls ``super()`` for what vLLM does.
    """

    if TYPE_CHECKING:  # what stands behind it

        def _init_executor(self) -> None: ...

        def _post_init_executor(self) -> None: ...

        def _build_runtime_env(self) -> dict[str, Any]: ...

        def _update_noset_device_env_vars(self, ray_remote_kwargs: dict[str, Any]) -> Any: ...

        def collective_rpc(self, *args: Any, **kwargs: Any) -> Any:
            """Call all workers."""

        def shutdown(self) -> None:
            """End the workers."""

        def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
            """Finish the worker (V2's actor)."""

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...


class RepairRefusalError(RaycompatError):
    """A configuration that the shipped executor would serve wrongly, stopped before it starts."""


class RepairMismatchError(RaycompatError):
    """A vLLM that is not what the release it names was, so that a repair does not fit it."""


@dataclass(frozen=True)
class Repair:
    """One known defect of a shipped executor, and what is done about it.

    Attributes:
        name: as in ``RAYCOMPAT_REPAIRS``.
        defects: ids of the facts this package is built on (``V2-1``), for the record.
        backends: whose executors have it.
        since: the first release that has it (a release of :data:`~.schedule.RELEASES`).
        fixed_in: the first release without it; None while every release has it.
        reports: where it was reported; empty when it was found by reading the code.
        symptom: what a user sees without the repair.
        effect: what the repair changes.
        refuses: whether it only refuses what cannot be put right without replacing much of vLLM.
        executor: goes before vLLM's executor class.
        worker: goes before the class of vLLM's Ray actors.
    """

    name: str
    defects: tuple[str, ...]
    backends: frozenset[Backend]
    since: str
    fixed_in: str | None
    reports: tuple[str, ...]
    symptom: str
    effect: str
    refuses: bool = False
    executor: type[Mixin] | None = None
    worker: type[Mixin] | None = None

    def applies_to(self, backend: Backend, release: Version) -> bool:
        """Say whether vLLM *release* ships *backend* with this defect.

        A pre-release counts as the release it leads to. A release newer than those the repair was
        tested on is left alone.
        """
        base = Version(release.base_version)
        return (
            backend in self.backends
            and backend in row_for(release).ships
            and Version(self.since) <= base
            and (self.fixed_in is None or base < Version(self.fixed_in))
            and not is_untested(release)
        )

    def releases(self) -> str:
        """Return the range as text: ``0.20.0 to 0.28.0`` or ``0.20.0 and later``."""
        if self.fixed_in is None:
            return f"{self.since} and later"
        since, fixed = Version(self.since), Version(self.fixed_in)
        last = max(release for release in map(Version, RELEASES) if since <= release < fixed)
        return f"{since} to {last}" if last > since else f"{since} only"

    def to_dict(self) -> dict[str, object]:
        """Return the object that ``status --json`` prints."""
        return {
            "name": self.name,
            "defects": list(self.defects),
            "releases": self.releases(),
            "reports": list(self.reports),
            "symptom": self.symptom,
            "effect": self.effect,
            "kind": "refusal" if self.refuses else "repair",
        }


def is_untested(release: Version) -> bool:
    """Say whether *release* is of a newer line than every release the repairs were tested on."""
    newest = Version(RELEASES[-1])
    return release.release[:2] > newest.release[:2]


def select_repairs(
    repairs: Sequence[Repair],
    backend: Backend,
    version: str,
    wanted: frozenset[str] | None = None,
    unwanted: frozenset[str] = frozenset(),
) -> tuple[Repair, ...]:
    """Return the repairs in force for *backend* as vLLM *version* ships it.

    Args:
        repairs: the table, in the order in which they are applied.
        backend: the executor that runs.
        version: of vLLM; one that is no version gets no repairs, because nobody knows its defects.
        wanted: their names (``RAYCOMPAT_REPAIRS``); None is all.
        unwanted: names to leave out all the same.
    """
    try:
        release = Version(version)
    except InvalidVersion:
        return ()
    if Version(release.base_version) < SCHEDULE[0].since:
        return ()
    return tuple(
        repair
        for repair in repairs
        if (wanted is None or repair.name in wanted)
        and repair.name not in unwanted
        and repair.applies_to(backend, release)
    )


def validate(repairs: Iterable[Repair]) -> None:
    """Check the table, and report every contradiction at once.

    Raises:
        AssertionError: with one sentence for each.
    """
    faults: list[str] = []
    seen: set[str] = set()
    for repair in repairs:
        if repair.name in seen:
            faults.append(f"{repair.name} is there twice")
        if repair.name in ("all", "none") or "," in repair.name:
            faults.append(f"{repair.name!r} cannot be a name in RAYCOMPAT_REPAIRS")
        seen.add(repair.name)
        for release in (repair.since, repair.fixed_in):
            if release is not None and release not in RELEASES:
                faults.append(f"{repair.name}: {release} is no release")
        if not any(repair.applies_to(b, Version(r)) for b in repair.backends for r in RELEASES):
            faults.append(f"{repair.name} applies to no release")
        if repair.executor is None and repair.worker is None:
            faults.append(f"{repair.name} changes nothing")
    if faults:
        raise AssertionError("; ".join(faults))
