"""Write a capture that is in memory, as an arm would have."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from vllm_ray_compat.parity.capture import Capture


def write_capture(capture: Capture, path: Path, shuffle: Random | None = None) -> None:
    """Write *capture* to *path*.

    Args:
        capture: what to write.
        path: is written anew.
        shuffle: puts the keys of every object in another order.
    """
    records = [capture.header, capture.engine, *capture.results, capture.failure, capture.end]
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            if record is not None:
                data: Any = record.model_dump(mode="json", by_alias=True)
                if shuffle is not None:
                    data = _shuffled(data, shuffle)
                file.write(json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")


def _shuffled(value: Any, random: Random) -> Any:
    if isinstance(value, dict):
        items = [(key, _shuffled(item, random)) for key, item in value.items()]
        random.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [_shuffled(item, random) for item in value]
    return value
