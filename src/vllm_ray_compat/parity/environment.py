"""The environment of an arm: the caller's, with everything pinned that could tell arms apart."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_ray_compat.executors.rank_order import INDICES_NAME
from vllm_ray_compat.names import FLAG_NAME, INVALID_FLAG_NAME, PLUGIN_NAME, PREFIX
from vllm_ray_compat.parity.backends import MP, is_class
from vllm_ray_compat.schedule import Backend

#: Both arms get these. PYTHONHASHSEED because block hashes depend on it.
_PINS = {
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}

#: Both arms get these unless the caller has set them. The model runner, because the legacy executor
#: is wrong with V2's (defect L-2); who wants to see that, or V2 against ``mp`` with it, sets it.
_DEFAULTS = {"VLLM_USE_V2_MODEL_RUNNER": "0"}

#: Pins of the CPU platform: no NUMA binding and one thread a worker in every arm (``mp`` would
#: bind its workers to cores, Ray gives its own one thread), the same priority (Ray's workers are at
#: nice 15, and starve beside a driver that spins, where ``mp``'s do not), Compiled Graph through
#: shared memory.
_CPU_PINS = {
    "RAYCOMPAT_CPU": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE": "shm",
}


#: Say what an executor is, and how long it waits for devices, not which one runs.
_KEPT_SETTINGS = ("RAYCOMPAT_REPAIRS", "RAYCOMPAT_PLACEMENT_TIMEOUT_S")

#: What the caller's shell may have set for other engines, and what would steer ours.
_NOT_FOR_ARMS = ("VLLM_PORT", "VLLM_TARGET_DEVICE", INDICES_NAME, "RAY_ADDRESS")


def base_environment(environ: Mapping[str, str], *, cpu: bool) -> dict[str, str]:
    """Return the environment that Ray and every arm share.

    The caller's variables stay, but for the flag, the ``RAYCOMPAT_*`` settings (only which
    repairs are applied and how long a start waits for devices stay) and what would steer a single
    engine. A value the caller set for the model runner or, on the CPU, for one of its pins wins,
    for all arms alike. An allow-list of plugins gets ours added.

    Args:
        environ: the caller's environment.
        cpu: run on the CPU platform.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if (not name.startswith(PREFIX) or name in _KEPT_SETTINGS)
        and name not in (FLAG_NAME, INVALID_FLAG_NAME, *_NOT_FOR_ARMS)
    }
    allowed = kept.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN_NAME not in allowed.split(","):
        kept["VLLM_PLUGINS"] = ",".join(filter(None, [allowed, PLUGIN_NAME]))
    defaults = {**_DEFAULTS, **(_CPU_PINS if cpu else {})}
    return {**defaults, **kept, **_PINS}


def arm_environment(
    base: Mapping[str, str],
    backend: str,
    *,
    engine_core: str,
    ray: Mapping[str, str],
    restore_legacy: bool,
    bundle_indices: str | None = None,
) -> dict[str, str]:
    """Return the whole environment of one arm.

    Args:
        base: what all arms share.
        backend: ``legacy``, ``v2`` or ``mp``.
        engine_core: ``inproc`` or ``process``.
        ray: how to reach Ray; empty for ``mp``.
        restore_legacy: the installed vLLM has no legacy executor, and the arm wants one.
        bundle_indices: its ``VLLM_RAY_BUNDLE_INDICES``.
    """
    environ = {**base, **ray}
    if bundle_indices is not None:
        environ[INDICES_NAME] = bundle_indices
    environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if engine_core == "inproc" else "1"
    if backend == MP or is_class(backend):
        return environ
    environ[FLAG_NAME] = "0" if backend == Backend.LEGACY.value else "1"
    if restore_legacy:
        environ["RAYCOMPAT_RESTORE_LEGACY"] = "1"
    return environ


def own_cluster(address: str, node_ip: str, credentials: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which an arm reaches the run's own Ray cluster.

    ``VLLM_HOST_IP`` is the address Ray knows the node by: the legacy executor pins a bundle to
    ``node:<VLLM_HOST_IP>`` and would wait for ever for a node of another name.
    """
    return {"RAY_ADDRESS": address, "VLLM_HOST_IP": node_ip, **credentials}


def other_cluster(address: str) -> dict[str, str]:
    """Return the variables with which an arm reaches a Ray cluster that was there before."""
    return {"RAY_ADDRESS": address}
