"""The messages of the control plane: made of the fields a release has, and of the told size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Optional

import pytest

from vllm_ray_compat.bench import fields, payload
from vllm_ray_compat.errors import UsageError

SCRIPT = """
import json, pickle
from vllm_ray_compat.bench import payload

found = {}
for name in payload.SHAPES:
    made = payload.build(name)
    pickled = pickle.dumps(made, protocol=5)
    new, cached = made.scheduled_new_reqs, made.scheduled_cached_reqs
    found[name] = {
        "type": type(made).__module__ + "." + type(made).__name__,
        "bytes": payload.pickled_bytes(made),
        "again": pickle.dumps(payload.build(name), protocol=5) == pickled,
        "survives": pickle.loads(pickled) == made,
        "running": len(cached.req_ids),
        "per_running": [len(cached.new_block_ids), len(cached.num_computed_tokens)],
        "with_new_block": sum(one is not None for one in cached.new_block_ids),
        "new": [[len(n.prompt_token_ids), len(n.block_ids[0])] for n in new],
        "ids": len({*cached.req_ids, *(n.req_id for n in new)}),
        "tokens": [made.total_num_scheduled_tokens, sum(made.num_scheduled_tokens.values())],
        "finished": list(made.finished_req_ids),
    }
print("FOUND " + json.dumps(found))
"""


@pytest.mark.skipif(find_spec("vllm") is None, reason="no vLLM here")
def test_messages_are_those_of_the_installed_vllm() -> None:
    """In a process of its own: an imported vLLM changes what other tests see."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "RAYCOMPAT_CPU": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND ")[2])
    small, large = found["small"], found["large"]
    for name, one in found.items():
        assert one["type"] == "vllm.v1.core.sched.output.SchedulerOutput"
        assert one["again"], name
        assert one["survives"], name
        assert one["per_running"] == [one["running"]] * 2
        assert one["ids"] == one["running"] + len(one["new"])
        assert one["finished"] == []
        # Floors send as many bytes without asking vLLM; releases differ by their fields' names.
        assert one["bytes"] == pytest.approx(payload.PICKLED_BYTES[name], rel=0.15)
    assert (small["running"], small["new"], small["tokens"]) == (8, [], [8, 8])
    assert large["running"] == 256
    assert large["new"] == [[2048, 128]] * 8
    assert large["tokens"] == [256 + 8 * 2048] * 2
    assert 0 < large["with_new_block"] < 256


def test_an_unknown_payload_is_told_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="small, large"):
        payload.check_known("smal")


@dataclass
class OfAnyRelease:
    known: str
    numbers: list[int]
    table: dict[str, list[int]]
    names: set[str]
    count: int
    maybe: Optional[int]  # noqa: UP045
    other: OfAnyRelease | None
    with_default: int = 7
    made: list[int] = field(default_factory=lambda: [1])


def test_fields_get_what_is_known_their_default_or_nothing() -> None:
    assert fields.make(OfAnyRelease, known="a", not_of_this_release=1) == OfAnyRelease(
        known="a", numbers=[], table={}, names=set(), count=0, maybe=None, other=None
    )
    assert fields.make(OfAnyRelease, known="a", with_default=8, numbers=[2]).with_default == 8


def test_real_types_are_read_as_well_as_postponed_ones() -> None:
    made = type("Kind", (), {"__annotations__": {"a": list[int], "b": int, "c": int | None}})
    found = fields.make(dataclass(made))
    assert (found.a, found.b, found.c) == ([], 0, None)
