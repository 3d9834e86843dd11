"""Captures: what an arm produced, as JSON Lines, one record a line, written as it happens.

Records are flushed one by one, so a crash keeps what came before (a line cut short is passed
over). Floats round-trip bit for bit
(JSON text of a Python float is exact); the values JSON has no text for are the strings ``nan``,
``inf`` and ``-inf``. No pickle.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from vllm_ray_compat.errors import UsageError

SCHEMA = "vllm_ray_compat.capture/2"

#: One candidate of a position: token id, logprob (nats), rank (1 is the likeliest; 0 unknown).
LogprobEntry = tuple[int, float | str, int]
#: The candidates of each position; None where vLLM gives none (the first prompt token).
Logprobs = list[list[LogprobEntry] | None]


class CaptureError(UsageError):
    """A file that is not a capture this version reads; names file, line and what was expected."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


def of_engine(workload: str, number: int) -> str:
    """Return a workload as an arm names it for its engine of that *number*: ``name@2``, …"""
    return workload if number == 1 else f"{workload}@{number}"


def of_suite(workload: str) -> str:
    """Return a workload as the suite names it, without the number of an engine."""
    return workload.partition("@")[0]


class NotRun(_Record):
    """A workload of the suite that a run leaves out, because something in it cannot run it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workload: str
    requests: int
    backend: str | None = Field(
        default=None,
        description="Whose known difference it is: it cannot run it by design. None: no executor "
        "can, on that platform.",
    )
    platform: str | None = Field(default=None, description="Where that is so. None: everywhere.")
    why: str
    source: str

    @property
    def state(self) -> Literal["cannot run here", "known difference"]:
        """What this says of the workload."""
        return "cannot run here" if self.backend is None else "known difference"

    @property
    def what(self) -> str:
        """What cannot run it: ``legacy``, ``cpu`` or ``legacy on cpu``."""
        return " on ".join(filter(None, (self.backend, self.platform)))

    @property
    def told(self) -> str:
        """What cannot run it, why, and where that is documented or was measured."""
        return f"{self.what} cannot run it: {self.why} ({self.source})"


class Header(_Record):
    """The first record: what the arm was asked for."""

    kind: Literal["header"] = "header"
    schema_: str = Field(default=SCHEMA, alias="schema")
    role: str
    backend: str
    topology: str
    profile: str = Field(default="default", description="The suite's engine options in use.")
    suite: str
    model: str
    engine_core: str
    started_at: float = Field(description="Seconds since the epoch.")
    not_run: list[NotRun] = Field(
        default=[], description="Workloads that all arms of the run leave out, and why."
    )

    def leaves_out(self, workload: str) -> bool:
        """Say whether *workload* is one that was left out."""
        return any(one.workload == of_suite(workload) for one in self.not_run)


class Phase(_Record):
    """What the arm is doing now, for the progress display and the timings."""

    kind: Literal["phase"] = "phase"
    name: Literal["import", "engine", "workload", "shutdown"]
    detail: str = ""
    at: float = Field(description="Seconds since the arm started.")


class Worker(_Record):
    """One rank, as the live worker describes itself."""

    rank: int
    local_rank: int
    pid: int
    node_ip: str
    node_id: str | None = None
    worker_class: str
    actor_class: str | None = None
    devices: dict[str, list[str]] = {}
    bundle: int | None = Field(
        default=None, description="Of the placement group; None: in none, or not recorded."
    )
    visible_devices: str | None = None
    settings: dict[str, str] = Field(
        default={}, description="The RAYCOMPAT_* variables and the flag in the worker."
    )
    environment: dict[str, str] | None = Field(
        default=None,
        description="Variables of the worker's process as redaction.redact() gives them: "
        "the value where it is safe to show, else a digest of it. None: not recorded.",
    )


class Engine(_Record):
    """What actually ran, read from the live engine and its workers."""

    kind: Literal["engine"] = "engine"
    executor: str
    executor_read_from: Literal["engine", "workers"]
    provider: str
    repairs: list[str] | None = Field(
        default=None, description="Repairs of vLLM's class in force; None: not to be read."
    )
    vllm: str
    ray: str | None
    torch: str
    python: str
    dtype: str
    async_scheduling: bool
    enforce_eager: bool
    v2_model_runner: bool | None
    workers: list[Worker]
    start_s: float = Field(description="Seconds from the start of the arm to a usable engine.")


class Output(_Record):
    """One completion of a request."""

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    cumulative_logprob: float | str | None
    logprobs: Logprobs | None


class RequestError(_Record):
    """Why the engine refused a request."""

    type: str
    message: str


class Result(_Record):
    """The answer to one request, or its refusal."""

    kind: Literal["result"] = "result"
    workload: str
    request: str
    outputs: list[Output] = []
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: Logprobs | None = None
    num_cached_tokens: int | None = None
    error: RequestError | None = None
    token_times_s: list[float] | None = Field(
        default=None,
        description="Seconds from handing the workload's requests to the engine until each token "
        "of output 0 arrived; tokens of one step arrive together. None: not measured.",
    )
    token_steps: list[int] | None = Field(
        default=None,
        description="The engine step, from 0, that brought each token of output 0. None: the "
        "engine core is in another process, or a grammar decides.",
    )
    embedding: list[float | str] | None = None
    preemptions: int | None = Field(
        default=None, description="How often it was preempted; None: the scheduler is elsewhere."
    )


class Failure(_Record):
    """Why the arm could not go on."""

    kind: Literal["failure"] = "failure"
    reason: Literal["environment", "wrong-executor", "engine-start", "workload", "shutdown"]
    message: str


class End(_Record):
    """The last record of an arm that ran to its end."""

    kind: Literal["end"] = "end"
    workloads_s: dict[str, float] = Field(description="Seconds each workload took.")
    shutdown_s: float
    total_s: float


Record = Header | Phase | Engine | Result | Failure | End
_ANY: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def encode_float(value: float | None) -> float | str | None:
    """Return *value*, or its name where JSON has no text for it."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


class CaptureWriter:
    """Appends records to a capture; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self.started = time.monotonic()

    def write(self, record: Record) -> None:
        """Write one record and flush it."""
        data = record.model_dump(mode="json", by_alias=True)
        self._file.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def phase(
        self, name: Literal["import", "engine", "workload", "shutdown"], detail: str = ""
    ) -> None:
        """Say what the arm does from now on."""
        self.write(Phase(name=name, detail=detail, at=self.elapsed()))

    def elapsed(self) -> float:
        """Return the seconds since the capture was opened."""
        return round(time.monotonic() - self.started, 3)

    def __enter__(self) -> CaptureWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._file.close()


def parse_record(line: str | bytes, where: str) -> Record:
    """Parse one line; *where* is ``file:line`` for messages.

    Raises:
        CaptureError: not JSON, or not a record of this schema.
    """
    try:
        return _ANY.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the line"
        raise CaptureError(f"{where}: not a record of {SCHEMA}: {place}: {first['msg']}.") from None


class Line(NamedTuple):
    """One line of a capture: its number (from 1), where it begins (bytes), and its bytes."""

    number: int
    offset: int
    data: bytes

    @property
    def whole(self) -> bool:
        """Whether it was written to its end."""
        return self.data.endswith(b"\n")


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a capture; the first one has been checked to be a header.

    Raises:
        CaptureError: no regular file, not readable, or it does not begin with the header of a
            capture of this schema.
    """
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise CaptureError(
                f"{path}: cannot be read as a capture: it is {kind}; expected a file of JSON Lines."
            )
        with path.open("rb") as file:
            offset = 0
            # A foreign file may be one line of any length.
            data = file.readline(_LONGEST_HEADER)
            if data:
                check_schema(data, f"{path}:1", "the header of a capture", SCHEMA)
            number = 1
            while data:
                yield Line(number, offset, data)
                offset += len(data)
                number += 1
                data = file.readline()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise CaptureError(f"{path}: cannot be read as a capture: {error}.") from None


def read_records(path: Path, *, lenient_end: bool = False) -> Iterator[Record]:
    """Yield the records of a capture, one at a time.

    Args:
        path: the capture.
        lenient_end: leave out a last line that was not written to its end (the arm was killed).

    Raises:
        CaptureError: the file cannot be read, does not begin with a header of a schema this
            version reads, or holds a line that is no record.
    """
    for line in read_lines(path):
        if lenient_end and not line.whole:
            return
        yield parse_record(line.data, f"{path}:{line.number}")


#: Bytes; no header comes near it.
_LONGEST_HEADER = 1 << 20


def check_schema(line: bytes | str, where: str, what: str, schema: str) -> None:
    """Check the first line of a file of JSON Lines.

    Args:
        line: holds an object with a ``schema``.
        where: ``file:line`` for the message.
        what: it has to be, for the message.
        schema: it has to name.

    Raises:
        CaptureError: it does not.
    """
    try:
        first: Any = json.loads(line)
    except ValueError:  # not JSON, not even text
        first = None
    found = first.get("schema") if isinstance(first, dict) else None
    if found == schema:
        return
    told = f"schema {found!r}" if found else "something else"
    family, _, ours = schema.rpartition("/")
    name, _, version = str(found).rpartition("/")
    hint = ""
    if name == family and version.isdecimal():
        hint = (
            " It was written by a newer vllm-ray-compat: update this one."
            if int(version) > int(ours)
            else " It was written by an older vllm-ray-compat: record it again."
        )
    raise CaptureError(f"{where}: expected {what} with schema {schema!r}, found {told}.{hint}")


class Capture(BaseModel):
    """A whole capture in memory."""

    header: Header
    engine: Engine | None = None
    results: list[Result] = []
    failure: Failure | None = None
    end: End | None = None


def read_capture(path: Path, *, lenient_end: bool = False) -> Capture:
    """Read a capture; an arm that stopped early has no ``end`` and perhaps a ``failure``.

    Raises:
        CaptureError: see :func:`read_records`; also a file without any record, and two results
            for one request.
    """
    capture: Capture | None = None
    seen: set[tuple[str, str]] = set()
    for number, record in enumerate(read_records(path, lenient_end=lenient_end), 1):
        if isinstance(record, Header):
            capture = Capture(header=record)
        elif capture is None:
            raise CaptureError(f"{path}:1: expected a header, found a {record.kind} record.")
        elif isinstance(record, Engine):
            capture.engine = record
        elif isinstance(record, Result):
            key = (record.workload, record.request)
            if key in seen:
                raise CaptureError(
                    f"{path}:{number}: a second result for workload {record.workload}, request "
                    f"{record.request}; expected one."
                )
            seen.add(key)
            capture.results.append(record)
        elif isinstance(record, Failure):
            capture.failure = record
        elif isinstance(record, End):
            capture.end = record
    if capture is None:
        raise CaptureError(f"{path}: the file is empty; expected a header of {SCHEMA!r}.")
    return capture
