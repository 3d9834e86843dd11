#!/usr/bin/env python3
"""Make the captures that `parity selftest` uses by default, from a run of suite `full`.

    python scripts/sample_captures.py RUN_FOLDER

Takes the default profile of the three arms on tp2pp2. Of the machine nothing is kept but what a
capture has to have: of the workers' environment the variables whose values are safe to show, of
the model its name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vllm_ray_compat.parity import selftest
from vllm_ray_compat.parity.capture import Capture
from vllm_ray_compat.parity.faults import write_capture
from vllm_ray_compat.parity.redaction import is_safe
from vllm_ray_compat.parity.stored import StoredCapture

ARMS = ("tp2pp2-reference-legacy", "tp2pp2-candidate-v2", "tp2pp2-reference-again-legacy")


def sample(path: Path) -> Capture:
    """Return the capture at *path* without what is of its machine."""
    with StoredCapture(path) as stored:
        engine = stored.engine
        if engine is None:
            raise SystemExit(f"{path}: no engine; the arm did not get that far")
        for worker in engine.workers:
            worker.environment = {
                name: value for name, value in (worker.environment or {}).items() if is_safe(name)
            }
        header = stored.header.model_copy(update={"model": Path(stored.header.model).name})
        return Capture(header=header, engine=engine, results=list(stored.results), end=stored.end)


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit((__doc__ or "").split("\n\n")[1].strip())
    folder = Path(selftest.__file__).with_name("samples")
    folder.mkdir(exist_ok=True)
    for arm in ARMS:
        target = folder / f"{arm}.jsonl"
        write_capture(sample(Path(sys.argv[1]) / f"{arm}.jsonl"), target)
        print(f"{target.name}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
