"""The environment of a worker: what may be shown of it, and how two arms differ in it.

Values are shown only for names that hold no secret by what they are. Of others a digest is kept,
which tells whether two are equal; of what is named like a secret only that it is set, because a
weak one could be guessed from a digest.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.names import FLAG_NAME, PREFIX
from vllm_ray_compat.parity.capture import Worker

#: Names whose values are shown.
_SAFE_NAMES = frozenset(
    {
        *(
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "CUDA_LAUNCH_BLOCKING",
            "CUDA_MODULE_LOADING",
        ),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        *("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_PORT"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY"),
        *("PYTHONHASHSEED", "PYTHONUNBUFFERED", "TOKENIZERS_PARALLELISM"),
        *(
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "CUBLAS_WORKSPACE_CONFIG",
            "NVIDIA_TF32_OVERRIDE",
        ),
        *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "LANG", "LC_ALL", "TZ"),
    }
)
_SAFE_PREFIXES = (PREFIX, "NCCL_", "TORCH_NCCL_", "TORCHINDUCTOR_", "RAY_CGRAPH_", "VLLM_", "OMP_")
#: Also of names that begin as a safe one: what sounds like a secret, an address or a path is none.
_UNSAFE = re.compile(
    r"KEY|TOKEN(?!IZERS)|SECRET|PASS|CRED|AUTH|URL|URI|HOST|_IP$|ADDR|PATH|DIR|ROOT|FILE|CACHE(?!_SPACE|_DTYPE)|HEADER|COOKIE|PROXY|USER"
)

_SECRET = re.compile(r"KEY|TOKEN(?!IZERS)|SECRET|PASS|CRED|AUTH|COOKIE", re.IGNORECASE)
#: What stands for the value of a secret.
SET = "(set)"

#: How a digest is written; an equal value gives an equal digest, on every machine.
_DIGEST = "sha256:"
_DIGEST_BYTES = 8


def is_safe(name: str) -> bool:
    """Say whether the value of a variable may be shown."""
    if name in _SAFE_NAMES or name == FLAG_NAME:
        return True
    return name.startswith(_SAFE_PREFIXES) and not _UNSAFE.search(name)


def redact(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* as it goes into a capture; see the module."""
    return {name: _told(name, value) for name, value in sorted(environ.items())}


def _told(name: str, value: str) -> str:
    if is_safe(name):
        return value
    return SET if _SECRET.search(name) else digest(name, value)


def digest(name: str, value: str) -> str:
    """Return a short keyed digest of a value: it differs between variables of the same value."""
    made = hmac.new(name.encode(), value.encode(errors="surrogateescape"), hashlib.sha256)
    return _DIGEST + made.hexdigest()[: 2 * _DIGEST_BYTES]


class EnvironmentDifference(BaseModel):
    """One variable that differs between the workers of two arms."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    reference: str
    candidate: str
    name: str
    ranks: list[int]
    reference_value: str | None = Field(description="At the first of the ranks; None: not set.")
    candidate_value: str | None = Field(description="At the first of the ranks; None: not set.")


def compare_environments(
    topology: str,
    names: tuple[str, str],
    reference: Sequence[Worker],
    candidate: Sequence[Worker],
) -> list[EnvironmentDifference]:
    """Return the variables that differ, rank by rank, among ranks whose environment both recorded.

    They are told, not judged: two backends set different variables, and that is no fault.
    """
    left = {worker.rank: worker.environment for worker in reference}
    right = {worker.rank: worker.environment for worker in candidate}
    ranks: dict[str, list[int]] = {}
    values: dict[str, tuple[str | None, str | None]] = {}
    for rank in sorted(left.keys() & right.keys()):
        mine, theirs = left[rank], right[rank]
        if mine is None or theirs is None:
            continue
        for name in sorted(mine.keys() | theirs.keys()):
            pair = mine.get(name), theirs.get(name)
            if pair[0] != pair[1]:
                ranks.setdefault(name, []).append(rank)
                values.setdefault(name, pair)
    return [
        EnvironmentDifference(
            topology=topology,
            reference=names[0],
            candidate=names[1],
            name=name,
            ranks=found,
            reference_value=values[name][0],
            candidate_value=values[name][1],
        )
        for name, found in sorted(ranks.items())
    ]
