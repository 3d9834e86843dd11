"""Compare two captures request by request and field by field, exactly where nothing else is said.

Neither capture is held in memory: see ``align`` for how their requests are brought together,
``divergence`` for how two results are compared, and ``Keep`` for what is remembered of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.align import Pair, align
from vllm_ray_compat.parity.divergence import (
    EQUAL,
    Divergence,
    Finding,
    Outcome,
    compare_results,
    sequence,
)
from vllm_ray_compat.parity.engines import EngineDifference, engine_differences
from vllm_ray_compat.parity.known import DeclaredDifference, KnownOfPair
from vllm_ray_compat.parity.placement import compare_placement
from vllm_ray_compat.parity.stored import InMemory, Key, Source, same_but_for_times
from vllm_ray_compat.parity.tolerance import Tolerances
from vllm_ray_compat.parity.worker_environment import EnvironmentDifference, compare_environments

__all__ = ["FIELDS", "Comparison", "Divergence", "compare", "compare_sources", "differences"]

#: The fields of a request, in the order they are compared and shown.
FIELDS: tuple[str, ...] = (
    "present",
    "order",
    "prompt_token_ids",
    "outputs",
    "token_ids",
    "text",
    "finish_reason",
    "stop_reason",
    "logprobs",
    "cumulative_logprob",
    "prompt_logprobs",
    "num_cached_tokens",
    "error",
    "embedding",
    "token_steps",
    "preemptions",
)

#: What stands for the workload in a comparison of where a rank is placed.
PLACEMENT = "(placement)"

#: What two captures must have in common to be compared at all.
_SAME = ("suite", "topology")


class Comparison(BaseModel):
    """One field of one request, compared between two arms."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    reference: str
    candidate: str
    workload: str
    request: str
    field: str
    result: Outcome
    first_divergence: Divergence | None = None
    follows: str | None = Field(
        default=None, description="The difference of the same request that this one comes from."
    )
    known: str | None = Field(
        default=None, description="The declared difference that this one is, and its source."
    )


class Total(BaseModel):
    """How often a field of a workload's requests came out how."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    reference: str
    candidate: str
    workload: str
    field: str
    equal: int = 0
    different: int = 0
    follows: int = 0
    within_tolerance: int = 0
    known: int = 0
    noted: int = 0


@dataclass(frozen=True)
class Keep:
    """How many records of a pair of captures are kept one by one; totals count all of them."""

    equal: int = 5_000
    others: int = 2_000
    #: Requests that differ, kept to be told from noise.
    requests: int = 100_000


ALL = Keep(equal=1 << 62, others=1 << 62, requests=1 << 62)


@dataclass
class Compared:
    """What came of comparing two captures."""

    topology: str
    reference: str
    candidate: str
    tolerances: Tolerances
    known: KnownOfPair
    keep: Keep
    #: Requests compared, or missing on one side.
    requests: int = 0
    #: Tokens of completions compared, up to a divergence.
    tokens: int = 0
    #: Requests that an arm which was interrupted did not get to.
    not_compared: int = 0
    #: Whether one of the arms did not get to its end.
    partial: bool = False
    #: Requests of which a field differs; of the others, those with one that differs as declared;
    #: of the rest, those with one that is within a tolerance.
    different: int = 0
    known_requests: int = 0
    within_tolerance: int = 0
    comparisons: list[Comparison] = field(default_factory=list)
    placement: list[Comparison] = field(default_factory=list)
    environment: list[EnvironmentDifference] = field(default_factory=list)
    engines: list[EngineDifference] = field(default_factory=list)
    #: Requests (and placed ranks) that differ, up to ``keep.requests`` of them.
    differing: set[Key] = field(default_factory=set)
    #: Workload -> requests of which every field is equal.
    _all_equal: Counter[str] = field(default_factory=Counter)
    #: Workload and field -> results, of the other requests.
    _counts: dict[tuple[str, str], Counter[Outcome]] = field(default_factory=dict)
    _kept_others: int = 0

    @property
    def totals(self) -> list[Total]:
        """Return the counts by workload and field."""
        found = []
        for workload in dict.fromkeys([*self._all_equal, *(w for w, _ in self._counts)]):
            for name in FIELDS:
                counts = self._counts.get((workload, name), Counter[Outcome]())
                counts = counts + Counter({"equal": self._all_equal[workload]})
                if counts:
                    told = {result.replace("-", "_"): n for result, n in counts.items()}
                    found.append(
                        Total.model_validate(
                            {**self._names(), "workload": workload, "field": name, **told}
                        )
                    )
        return found

    @property
    def equal_left_out(self) -> int:
        """How many equal comparisons are not kept one by one."""
        return sum(t.equal for t in self.totals) - len(self.comparisons) + self._kept_others

    @property
    def others_left_out(self) -> int:
        """How many other comparisons are not kept one by one."""
        counted = sum(n for c in self._counts.values() for r, n in c.items() if r != "equal")
        return counted - self._kept_others

    @property
    def unnamed(self) -> int:
        """How many differing requests are not in ``differing``."""
        return self.different - sum(1 for key in self.differing if key.workload != PLACEMENT)

    def add_equal(self, key: Key) -> None:
        """Take in a request of which every field is equal."""
        self._all_equal[key.workload] += 1
        for name in FIELDS:
            if not self._has_room("equal"):
                break
            self.comparisons.append(self._comparison(key, name, "equal", None))

    def add(self, key: Key, name: str, finding: Finding) -> Outcome:
        """Take in how one field of one request came out; returns the result, known or not."""
        result, known = finding.result, None
        if result == "different":
            known = self.known.find(key, name)
            result = "different" if known is None else "known"
        self._counts.setdefault((key.workload, name), Counter())[result] += 1
        if self._has_room(result):
            self.comparisons.append(
                self._comparison(
                    key,
                    name,
                    result,
                    finding.divergence,
                    finding.follows,
                    None if known is None else f"{known.what} ({known.source})",
                )
            )
        return result

    def _has_room(self, result: Outcome) -> bool:
        if result == "equal":
            return len(self.comparisons) - self._kept_others < self.keep.equal
        room = self._kept_others < self.keep.others
        self._kept_others += room
        return room

    def place(self, rank: int, name: str, result: Outcome, divergence: Divergence) -> None:
        """Take in a difference in where a rank is placed."""
        key = Key(PLACEMENT, f"rank {rank}")
        self.placement.append(self._comparison(key, name, result, divergence))
        if result == "different":
            self.differing.add(key)

    def take(self, key: Key, results: Sequence[Outcome]) -> None:
        """Take in how all fields of a request came out, of which not all are equal."""
        if "different" in results:
            self.different += 1
            if len(self.differing) < self.keep.requests:
                self.differing.add(key)
        elif "known" in results:
            self.known_requests += 1
        elif "within-tolerance" in results:
            self.within_tolerance += 1

    def _names(self) -> dict[str, str]:
        return {
            "topology": self.topology,
            "reference": self.reference,
            "candidate": self.candidate,
        }

    def _comparison(
        self,
        key: Key,
        name: str,
        result: Outcome,
        divergence: Divergence | None,
        follows: str | None = None,
        known: str | None = None,
    ) -> Comparison:
        return Comparison(
            **self._names(),
            workload=key.workload,
            request=key.request,
            field=name,
            result=result,
            first_divergence=divergence,
            follows=follows,
            known=known,
        )


def compare(
    topology: str, reference: cap.Capture, candidate: cap.Capture, candidate_name: str | None = None
) -> list[Comparison]:
    """Compare every field of every request of two captures in memory, exactly.

    Args:
        topology: for the records.
        reference: what is taken as right.
        candidate: what is judged.
        candidate_name: how it is called; default its backend.

    Raises:
        CaptureError: the captures are of different suites or topologies.
    """
    found = compare_sources(
        topology,
        InMemory(reference),
        InMemory(candidate),
        names=(reference.header.backend, candidate_name or candidate.header.backend),
        keep=ALL,
    )
    return found.comparisons


def compare_sources(
    topology: str,
    reference: Source,
    candidate: Source,
    *,
    names: tuple[str, str] | None = None,
    tolerances: Tolerances | None = None,
    declared: Sequence[DeclaredDifference] = (),
    keep: Keep | None = None,
) -> Compared:
    """Compare two captures, one result at a time.

    Args:
        topology: for the records.
        reference: what is taken as right.
        candidate: what is judged.
        names: how the two are called; default their backends.
        tolerances: default none.
        declared: known differences of the suite.
        keep: how many records to keep.

    Raises:
        CaptureError: the captures are of different suites or topologies, or one holds a line
            that is no record or two results for a request.
        UnusableEnvironmentError: no temporary file can be written.
    """
    for name in _SAME:
        a, b = getattr(reference.header, name), getattr(candidate.header, name)
        if a != b:
            raise cap.CaptureError(
                f"The captures cannot be compared: the reference is of {name} {a!r}, the "
                f"candidate of {b!r}."
            )
    arms = [(reference.header, reference.engine), (candidate.header, candidate.engine)]
    named = names or (reference.header.backend, candidate.header.backend)
    compared = Compared(
        topology,
        *named,
        tolerances=tolerances or Tolerances(),
        known=KnownOfPair(declared, arms),
        keep=keep or Keep(),
        partial=reference.partial or candidate.partial,
    )
    for pair in align(reference, candidate):
        _compare_pair(compared, pair, reference, candidate)
    compared.engines = engine_differences(topology, named, arms[0], arms[1])
    if reference.engine is not None and candidate.engine is not None:
        workers = reference.engine.workers, candidate.engine.workers
        for at in compare_placement(*workers):
            compared.place(at.rank, at.field, at.result, at.divergence)
        compared.environment = compare_environments(topology, named, *workers)
    return compared


def _compare_pair(compared: Compared, pair: Pair, reference: Source, candidate: Source) -> None:
    key = pair.key
    if pair.left is None or pair.right is None:
        lacking = reference if pair.left is None else candidate
        if lacking.header.leaves_out(key.workload):
            return
        if lacking.partial:
            compared.not_compared += 1
            return
        compared.requests += 1
        divergence = Divergence(
            position=pair.position,
            reference=pair.left is not None,
            candidate=pair.right is not None,
        )
        compared.take(key, [compared.add(key, "present", Finding("different", divergence))])
        return
    compared.requests += 1
    findings = {"present": EQUAL, "order": EQUAL}
    if pair.left_rank != pair.right_rank:
        findings["order"] = Finding(
            "different",
            Divergence(
                position=pair.left_rank, reference=pair.left_rank, candidate=pair.right_rank
            ),
        )
    lines = reference.raw(pair.left), candidate.raw(pair.right)
    one = other = reference.result(pair.left, lines[0])
    if not same_but_for_times(*lines):
        other = candidate.result(pair.right, lines[1])
        findings |= compare_results(one, other, compared.tolerances.of(key.workload))
    compared.tokens += _tokens_compared(one, other)
    if all(finding is EQUAL for finding in findings.values()):
        compared.add_equal(key)
        return
    compared.take(key, [compared.add(key, name, findings.get(name, EQUAL)) for name in FIELDS])


def _tokens_compared(one: cap.Result, other: cap.Result) -> int:
    count = 0
    for left, right in zip(one.outputs, other.outputs, strict=False):
        parted = sequence(left.token_ids, right.token_ids)
        at = None if parted is None else parted.position
        count += len(left.token_ids) if at is None else at + 1
    return count


def differences(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return those that differ, and are neither a consequence nor declared nor tolerated."""
    return [c for c in comparisons if c.result == "different"]
