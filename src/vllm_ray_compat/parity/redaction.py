"""What of an environment may be kept: values of safe names, digests of others, of secrets nothing.

Imported by workers, so it imports nothing but the names of this package. A digest tells whether
two values are equal; a short or common value can be guessed from it, so of what is named like a
secret only that it is set is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from vllm_ray_compat.names import FLAG_NAME, PREFIX

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
