"""The Compiled Graph of the legacy executor: what it needs, how it is built, what it returns."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import ray
import torch
from packaging.version import Version

from vllm_ray_compat.errors import UnusableEnvironmentError, unknown

#: The first Ray whose Compiled Graph vLLM relied on.
_OLDEST_RAY = Version("2.43.0")
_TRANSPORTS = ("auto", "nccl", "shm")
_TRANSPORT_NAME = "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE"


class GraphUnavailableError(UnusableEnvironmentError):
    """Ray's Compiled Graph, or what a transport needs, is not installed."""


def transport(is_cuda_alike: bool) -> str:
    """Return how tensors travel between pipeline stages: ``auto``, ``nccl`` or ``shm``.

    Raises:
        UsageError: the variable holds something else.
    """
    chosen = os.environ.get(_TRANSPORT_NAME, "auto" if is_cuda_alike else "shm")
    if chosen not in _TRANSPORTS:
        raise unknown(f"value of {_TRANSPORT_NAME}", chosen, _TRANSPORTS)
    # "auto" takes the accelerator's transport as soon as two actors hold different devices, fake
    # ones too.
    return chosen if is_cuda_alike else "shm"


def check_requirements(chosen: str, stages: int) -> None:
    """Check that a graph with this transport can be compiled, before any actor starts.

    Raises:
        GraphUnavailableError: Ray is too old, lacks its Compiled Graph, or cupy is missing.
    """
    found = Version(importlib.metadata.version("ray"))
    if found < _OLDEST_RAY:
        raise GraphUnavailableError(
            f"The legacy executor needs Ray {_OLDEST_RAY} or later; {found} is installed. "
            "Upgrade: pip install -U 'ray[cgraph]'."
        )
    if importlib.util.find_spec("ray.experimental.compiled_dag_ref") is None:
        raise GraphUnavailableError(
            "Ray's Compiled Graph is not installed. Install it: pip install 'ray[cgraph]'."
        )
    if chosen == "nccl" and stages > 1 and importlib.util.find_spec("cupy") is None:
        raise GraphUnavailableError(
            f"{_TRANSPORT_NAME}=nccl needs cupy, which is not installed. Install it: pip install "
            "'ray[cgraph]'; or set the variable to shm."
        )


def compile_graph(stages: Sequence[Sequence[Any]], chosen: str) -> Any:
    """Compile the graph of one step.

    Every worker of the first stage gets the input; rank i of a stage hands its output to rank i
    of the next; the outputs of the last stage come back.

    Args:
        stages: for each pipeline stage, its actors by tensor parallel rank.
        chosen: the transport between stages.
    """
    # Ray reads it when ray.dag is imported; its default of 10 s is shorter than a long prefill.
    os.environ.setdefault("RAY_CGRAPH_get_timeout", "300")
    from ray.dag import InputNode, MultiOutputNode

    with InputNode() as entry:
        flows: list[Any] = [entry] * len(stages[0])
        for index, stage in enumerate(stages):
            flows = [actor.step.bind(flow) for actor, flow in zip(stage, flows, strict=True)]
            if index + 1 < len(stages) and chosen != "shm":
                flows = [flow.with_tensor_transport(transport=chosen) for flow in flows]
        graph = MultiOutputNode(flows)
    overlap = os.environ.get("VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM", "0") == "1"
    return graph.experimental_compile(enable_asyncio=False, _overlap_gpu_communication=overlap)


#: What is left as it is; a list is one of token ids, or of lists of them.
_PLAIN = frozenset({bool, float, int, list, set, str, type(None)})


def detached(output: Any) -> Any:
    """Copy what of a ``ModelRunnerOutput`` may still point into a channel's shared memory.

    Ray hands arrays out without a copy, and the channel cannot be written again while somebody
    holds one: a request with logprobs then stalls the graph until its time-out (defect L-13).
    Fields differ between releases, so they are looked at by what they hold.
    """
    for name, value in vars(output).items():
        if type(value) in _PLAIN:
            continue
        copied = _copied(value)
        if copied is not value:
            setattr(output, name, copied)
    return output


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied(part) for part in value))
    if isinstance(value, dict):
        for key, part in value.items():
            if type(part) not in _PLAIN:
                value[key] = _copied(part)
    elif hasattr(value, "rows"):
        value.rows = _copied(value.rows)
    return value


class RayFuture(Future[Any]):
    """A future over Ray references, resolved in the thread that asks for its result."""

    def __init__(self, refs: Any, finish: Any) -> None:
        """Wrap *refs*; *finish* turns what ``ray.get`` returns into the result."""
        super().__init__()
        self._refs = refs
        self._finish = finish

    def result(self, timeout: float | None = None) -> Any:
        """Return the result; raises what the worker raised, or ``TimeoutError``."""
        if not self.done():
            try:
                self.set_result(self._finish(ray.get(self._refs, timeout=timeout)))
            except TimeoutError:
                raise  # not the task's fault, and it may still come
            except BaseException as error:
                self.set_exception(error)
            self._refs = None
        return super().result(timeout)
