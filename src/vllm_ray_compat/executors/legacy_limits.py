"""What a Compiled Graph executor would serve wrongly: vLLM's legacy one, and this package's.

Imports nothing of vLLM or Ray. Each function takes a ``VllmConfig`` and returns what is wrong with
it as a part of a sentence, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vllm_ray_compat.names import FLAG_NAME

Limit = Callable[[Any], "str | None"]


def model_runner(config: Any) -> str | None:
    """Model Runner V2, where the graph does not do what that runner needs (defect L-2).

    The graph calls ``sample_tokens`` on the last stage only, but there it sends the sampled tokens
    to the stages before, which receive them in their own ``sample_tokens``. A pooling model needs
    ``pool``, which nothing calls.
    """
    stages = config.parallel_config.pipeline_parallel_size
    if not _uses_model_runner_v2(config):
        return None
    if stages > 1:
        what = "several pipeline stages"
    elif config.model_config.runner_type == "pooling":
        what = "a pooling model"
    else:
        return None
    return f"Model Runner V2 with {what} gives wrong results on it (set VLLM_USE_V2_MODEL_RUNNER=0)"


def _uses_model_runner_v2(config: Any) -> bool:
    """Ask the configuration, which decides it since vLLM 0.22; before, the variable alone does."""
    if hasattr(config, "use_v2_model_runner"):
        return bool(config.use_v2_model_runner)
    from vllm import envs

    return bool(envs.VLLM_USE_V2_MODEL_RUNNER)


def context_parallel(config: Any) -> str | None:
    """Workers that have no node in the graph and so never run a step (defect L-6)."""
    if getattr(config.parallel_config, "prefill_context_parallel_size", 1) > 1:
        return "prefill context parallelism has no place in its graph"
    return None


def kv_connector(config: Any) -> str | None:
    """Transfers of which only the last stage reports the end (defect L-4).

    A smaller ``get_finished_count()`` of the connector does not put it right: a transfer would
    count as finished, and its blocks be freed, while other stages are still at it.
    """
    stages = config.parallel_config.pipeline_parallel_size
    if config.kv_transfer_config is not None and stages > 1:
        return (
            "a KV connector with several pipeline stages never completes, because only the last "
            "stage reports"
        )
    return None


def ec_connector(config: Any) -> str | None:
    """What the encoder cache connectors of all workers but one say is dropped (report L-18).

    Up to 0.27 that is no loss: the scheduler of no executor looks at it.
    """
    given = getattr(config, "ec_transfer_config", None) is not None
    if given and config.parallel_config.world_size > 1:
        return "an EC connector loses the state of all workers but one"
    return None


#: In the order in which they are named.
ALL: tuple[Limit, ...] = (model_runner, context_parallel, kv_connector, ec_connector)


def reasons(config: Any) -> list[str]:
    """Return what of :data:`ALL` is wrong with *config*."""
    return [reason for limit in ALL if (reason := limit(config)) is not None]


def refusal(found: Iterable[str]) -> str:
    """Return the text of an error: what, why and the way out."""
    return (
        f"The legacy Ray executor cannot serve this configuration: {'; '.join(found)}. "
        f"Or use RayExecutorV2: set {FLAG_NAME}=1."
    )
