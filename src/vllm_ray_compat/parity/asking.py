"""Turn the requests of a workload into what vLLM takes, and do what comes before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_ray_compat.parity.workloads import Embeddings, Operation, Request, Workload
from vllm_ray_compat.parity.workloads.images import Image


class OperationError(Exception):
    """An operation had no effect, so that what follows would prove nothing."""


def prepare(
    llm: Any, workload: Workload, adapters: Mapping[str, Any]
) -> list[tuple[Request, dict[str, Any]]]:
    """Return each request with the arguments of ``LLMEngine.add_request``, or the error it raised.

    Args:
        llm: the live ``vllm.LLM``; its tokenizer has the chat template.
        workload: whose requests.
        adapters: name -> ``LoRARequest``.
    """
    prepared: list[tuple[Request, dict[str, Any]]] = []
    for request in workload.requests:
        try:
            arguments = {"prompt": prompt_of(llm, request), "params": sampling_params(request)}
        except Exception as error:  # a parameter that vLLM refuses is an answer to compare
            prepared.append((request, {"error": error}))
            continue
        if request.lora is not None:
            arguments["lora_request"] = adapters[request.lora]
        prepared.append((request, arguments))
    return prepared


def prompt_of(llm: Any, request: Request) -> Any:
    """Return the prompt as vLLM takes it, chat messages rendered by the model's own template."""
    if request.prompt.embeddings is not None:
        return {"prompt_embeds": _tensor(llm, request.prompt.embeddings)}
    prompt = request.prompt.render()
    if request.prompt.messages is not None:
        prompt = llm.get_tokenizer().apply_chat_template(
            prompt, tokenize=False, add_generation_prompt=True
        )
    if not request.prompt.images:
        return prompt
    with_images = {"prompt": prompt} if isinstance(prompt, str) else prompt
    return {**with_images, "multi_modal_data": {"image": pictures(request.prompt.images)}}


def pictures(images: Sequence[Image]) -> list[Any]:
    """Return the images as Pillow's, which vLLM brings."""
    from PIL import Image as Pillow

    return [Pillow.frombytes("RGB", image.size, image.pixels()) for image in images]


def _tensor(llm: Any, embeddings: Embeddings) -> Any:
    """Return embeddings of the model's size and dtype, shape ``(tokens, hidden size)``."""
    import torch

    model = llm.llm_engine.vllm_config.model_config
    return torch.tensor(embeddings.rows(model.get_hidden_size()), dtype=model.dtype)


def sampling_params(request: Request) -> Any:
    """Build ``vllm.SamplingParams``; JSON has no integer keys and no nested parameter classes."""
    from vllm import SamplingParams

    given = dict(request.sampling)
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    if "structured_outputs" in given:
        from vllm.sampling_params import StructuredOutputsParams

        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    return SamplingParams(**given)


def operate(llm: Any, operation: Operation) -> None:
    """Do *operation* to the engine.

    Raises:
        OperationError: it had no effect.
        Exception: what vLLM raises.
    """
    if operation.do == "sleep":
        llm.sleep(level=operation.level)
    elif operation.do == "wake_up":
        llm.wake_up()
    elif operation.do == "reset_prefix_cache":
        if llm.reset_prefix_cache() is False:
            raise OperationError("the prefix cache was not reset: blocks are still in use")
    else:
        changed = llm.collective_rpc("raycompat_scale_weights", args=(operation.factor,))
        if not all(changed):
            raise OperationError(f"weights changed by rank: {changed}; all must have some")
