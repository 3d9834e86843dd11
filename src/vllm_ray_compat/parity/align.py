"""Bring the results of two captures together by workload and request, in bounded memory.

The keys go into a temporary SQLite database that spills to disk, so that neither millions of
requests nor any disorder between the two captures costs memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.parity.capture import CaptureError
from vllm_ray_compat.parity.stored import Key, Place, Source


class Pair(NamedTuple):
    """The results of one request; None where a capture has none.

    ``position`` is the place within the workload, in the capture that has it (the left one if
    both have). The ranks are places among the requests both captures hold, so that a lost one
    shifts nobody; None where one is missing.
    """

    key: Key
    left: Place | None
    right: Place | None
    position: int
    left_rank: int | None
    right_rank: int | None


_CREATE = """
CREATE TABLE {side} (
    workload BLOB NOT NULL, request BLOB NOT NULL, place INT, number INT, offset INT,
    UNIQUE (workload, request)
)
"""

# rowid is the order of the capture.
_PAIRS = """
WITH shared AS (
    SELECT l.rowid AS l_row, r.rowid AS r_row,
        row_number() OVER (PARTITION BY l.workload ORDER BY l.rowid) - 1 AS l_rank,
        row_number() OVER (PARTITION BY l.workload ORDER BY r.rowid) - 1 AS r_rank
    FROM l JOIN r USING (workload, request)
)
SELECT l.workload, l.request, l.place, l.number, l.offset, r.number, r.offset, l_rank, r_rank
FROM l LEFT JOIN shared ON l_row = l.rowid LEFT JOIN r ON r_row = r.rowid
ORDER BY l.rowid
"""

_ONLY_RIGHT = """
SELECT workload, request, place, number, offset FROM r
WHERE NOT EXISTS (SELECT 1 FROM l WHERE l.workload = r.workload AND l.request = r.request)
ORDER BY r.rowid
"""


def align(left: Source, right: Source) -> Iterator[Pair]:
    """Yield the pairs: in the order of *left*, then what only *right* has, in its order.

    Raises:
        CaptureError: a capture holds two results for one request.
        UnusableEnvironmentError: there is no room for temporary files.
    """
    # "" is a private database that lives in a temporary file once it outgrows its cache.
    base = sqlite3.connect("")
    try:
        base.execute("PRAGMA cache_size = -16000")  # KiB
        base.execute("PRAGMA temp_store = FILE")
        base.execute("PRAGMA journal_mode = OFF")
        for side, source in (("l", left), ("r", right)):
            base.execute(_CREATE.format(side=side))
            _fill(base, side, source)
        for workload, request, place, *found in base.execute(_PAIRS):
            one, at, other, there, left_rank, right_rank = found
            yield Pair(
                _key(workload, request),
                Place(one, at),
                None if other is None else Place(other, there),
                place,
                left_rank,
                right_rank,
            )
        for workload, request, place, number, offset in base.execute(_ONLY_RIGHT):
            yield Pair(_key(workload, request), None, Place(number, offset), place, None, None)
    except sqlite3.OperationalError as error:
        raise UnusableEnvironmentError(
            f"The captures cannot be compared: no temporary file can be written: {error}. Set "
            "TMPDIR to a folder with room."
        ) from None
    finally:
        base.close()


def _fill(base: sqlite3.Connection, side: str, source: Source) -> None:
    counts: dict[str, int] = {}
    insert = f"INSERT INTO {side} VALUES (?, ?, ?, ?, ?)"
    for key, place in source.keys():  # noqa: SIM118 (not a mapping)
        count = counts.get(key.workload, 0)
        counts[key.workload] = count + 1
        try:
            base.execute(insert, (*map(_stored, key), count, *place))
        except sqlite3.IntegrityError:
            raise CaptureError(
                f"{source.name}:{place.number}: a second result for workload {key.workload}, "
                f"request {key.request}; expected one."
            ) from None


def _stored(name: str) -> bytes:
    """Return a name as the database keeps it: any text, lone surrogates among it."""
    return name.encode("utf-8", "surrogatepass")


def _key(workload: bytes, request: bytes) -> Key:
    return Key(*(name.decode("utf-8", "surrogatepass") for name in (workload, request)))
