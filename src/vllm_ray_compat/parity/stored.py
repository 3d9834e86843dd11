"""A capture on disk that is never read whole: what is in it, and any result by its place.

Two captures of a gigabyte each are compared this way in little memory: each file is gone through
once for the keys of its results, and once for the results themselves, one at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from vllm_ray_compat.parity import capture as cap


class Key(NamedTuple):
    """What names a result in a capture."""

    workload: str
    request: str


class Place(NamedTuple):
    """Where a result is: its number and place in the source (line and byte, or list index)."""

    number: int
    offset: int


class Source(Protocol):
    """A capture as the comparison reads it."""

    name: str
    header: cap.Header
    engine: cap.Engine | None
    partial: bool

    def keys(self) -> Iterator[tuple[Key, Place]]:
        """Yield every result's key and place, in their order."""

    def result(self, place: Place, _raw: bytes | None = None) -> cap.Result:
        """Return the result at *place*; *_raw* is its line if it was read before."""

    def raw(self, _place: Place) -> bytes | None:
        """Return the line at *place*, or None where there are no lines."""


class InMemory:
    """A capture in memory as a source."""

    def __init__(self, capture: cap.Capture) -> None:
        self.name = f"the {capture.header.role} capture"
        self.header = capture.header
        self.engine = capture.engine
        self.partial = False
        self._results = capture.results

    def keys(self) -> Iterator[tuple[Key, Place]]:
        """See :class:`Source`."""
        for index, result in enumerate(self._results):
            yield Key(result.workload, result.request), Place(index, index)

    def result(self, place: Place, _raw: bytes | None = None) -> cap.Result:
        """See :class:`Source`."""
        return self._results[place.offset]

    def raw(self, _place: Place) -> bytes | None:
        """See :class:`Source`."""
        return None


class StoredCapture:
    """A capture file as a source; a context manager that keeps the file open.

    Attributes:
        count: number of results.
        failure: why the arm stopped, if it did.
        end: the last record of an arm that ran to its end.
        partial: the arm did not get to its end.

    Raises:
        CaptureError: see :func:`capture.read_records`; also a file without any record. A result
            that is no valid record raises only when it is read.
    """

    def __init__(self, path: Path, *, lenient_end: bool = False) -> None:
        self.path = path
        self.name = str(path)
        self._lenient_end = lenient_end
        self.engine: cap.Engine | None = None
        self.failure: cap.Failure | None = None
        self.end: cap.End | None = None
        self.cut_short = False
        self.count = 0
        self.lines = 0
        header: cap.Header | None = None
        for line in cap.read_lines(path):
            self.lines = line.number
            if not line.whole and lenient_end:
                self.cut_short = True
                break
            if self._key(line) is not None:
                self.count += 1
                continue
            record = cap.parse_record(line.data, f"{path}:{line.number}")
            if isinstance(record, cap.Header):
                header = record
            elif isinstance(record, cap.Engine):
                self.engine = record
            elif isinstance(record, cap.Failure):
                self.failure = record
            elif isinstance(record, cap.End):
                self.end = record
        if header is None:
            raise cap.CaptureError(
                f"{path}:1: the file is empty; expected a header of {cap.SCHEMA!r}."
            )
        self.header = header
        self.partial = self.end is None
        self._file = path.open("rb")

    @property
    def results(self) -> Iterator[cap.Result]:
        """The results in their order, one at a time."""
        for _, place in self.keys():
            yield self.result(place)

    def keys(self) -> Iterator[tuple[Key, Place]]:
        """See :class:`Source`."""
        for line in cap.read_lines(self.path):
            if self._lenient_end and not line.whole:
                return
            key = self._key(line)
            if key is not None:
                yield key, Place(line.number, line.offset)

    def result(self, place: Place, _raw: bytes | None = None) -> cap.Result:
        """See :class:`Source`."""
        where = f"{self.path}:{place.number}"
        record = cap.parse_record(_raw or self.raw(place), where)
        if not isinstance(record, cap.Result):  # the file was changed since it was gone through
            raise cap.CaptureError(f"{where}: expected a result, found a {record.kind} record.")
        return record

    def raw(self, _place: Place) -> bytes:
        """See :class:`Source`."""
        self._file.seek(_place.offset)
        return self._file.readline()

    def _key(self, line: cap.Line) -> Key | None:
        """Return the key of a result, without reading all of it where it begins as we write it."""
        match = _RESULT.match(line.data)
        try:
            if match is not None:
                workload, request = (pydantic_core.from_json(text) for text in match.groups())
                return Key(workload, request)
        except ValueError:
            pass  # told by the full reading that follows
        if b'"result"' not in line.data:
            return None
        record = cap.parse_record(line.data, f"{self.path}:{line.number}")
        if isinstance(record, cap.Result):
            return Key(record.workload, record.request)
        return None

    def __enter__(self) -> StoredCapture:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was read of it stays."""
        self._file.close()


#: How :class:`capture.CaptureWriter` begins the line of a result.
_RESULT = re.compile(
    rb'\{"kind": ?"result", ?"workload": ?("(?:[^"\\]|\\.)*"), ?"request": ?("(?:[^"\\]|\\.)*"),'
)

_TIMES = b', "token_times_s": '
_TIMES_ONLY: TypeAdapter[list[float] | None] = TypeAdapter(list[float] | None)


def same_but_for_times(left: bytes | None, right: bytes | None) -> bool:
    """Say whether two lines are the same bytes but for their token times, which are valid.

    Then what holds for one result holds for the other, and only one of them needs to be read.
    """
    if left is None or right is None:
        return False
    # A quote within a JSON string is escaped, so this can only be a key.
    begin = left.rfind(_TIMES)
    if begin < 0 or right.rfind(_TIMES) != begin or left[:begin] != right[:begin]:
        return False
    rests = []
    for line in (left, right):
        value = line[begin + len(_TIMES) :]
        end = len(b"null") if value.startswith(b"null") else value.find(b"]") + 1
        try:
            _TIMES_ONLY.validate_json(value[:end])
        except ValidationError:
            return False
        rests.append(value[end:].rstrip())
    return rests[0] == rests[1]
