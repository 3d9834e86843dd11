"""A small random model that sees: BLIP-2, made of an encoder, a Q-Former and the tiny Llama.

An image becomes 16 positions before the prompt. It is seen as 32 by 32 pixels, in patches of 8, by
2 layers with 4 heads of 16 (divide by tensor parallel sizes 2 and 4). The language model is that of
:mod:`.tiny_model`, number for number.

Why this one: most of vLLM's models with images import torchvision, LLaVA through Pixtral, too, and
the CPU environment leaves torchvision out. BLIP-2 needs none, is in transformers, and can be cut
into pipeline stages (Idefics3 and SmolVLM cannot). Its price: one image a request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm_ray_compat.parity.tiny_model import (
    HIDDEN,
    LLAMA,
    SPECIAL_TOKENS,
    configuration,
    drawer,
    ensure,
    llama_weights,
    write_json,
    write_model,
)

#: What stands in a prompt, as ids, where an image is; the engine puts it there.
IMAGE_TOKEN = "<image>"

#: Positions that an image takes.
QUERIES = 16
IMAGE_SIZE = 32
PATCH_SIZE = 8
VISION_HEADS = 4
VISION_HIDDEN = 64
VISION_INTERMEDIATE = 128
VISION_LAYERS = 2

#: OpenAI CLIP's, for red, green and blue.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def ensure_tiny_vision(root: Path | None = None) -> Path:
    """Return the folder of the model, made on first use; see :func:`.tiny_model.ensure`."""
    return ensure("tiny-vision", write_tiny_vision, root)


def write_tiny_vision(folder: Path) -> None:
    """Write the model with its tokenizer and image processor into *folder*."""
    write_json(
        folder / "preprocessor_config.json",
        {
            # Without torchvision, transformers takes its variant that needs Pillow alone.
            "image_processor_type": "BlipImageProcessor",
            "processor_class": "Blip2Processor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
            "resample": 3,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": _MEAN,
            "image_std": _DEVIATION,
        },
    )
    write_json(
        folder / "processor_config.json",
        {"processor_class": "Blip2Processor", "num_query_tokens": QUERIES},
    )
    weights = {f"language_model.{name}": array for name, array in llama_weights().items()}
    write_model(folder, weights | _eyes(), _config(), (*SPECIAL_TOKENS, IMAGE_TOKEN))


def _config() -> dict[str, Any]:
    common = {
        "hidden_size": VISION_HIDDEN,
        "intermediate_size": VISION_INTERMEDIATE,
        "num_attention_heads": VISION_HEADS,
        "num_hidden_layers": VISION_LAYERS,
        "hidden_act": "gelu",
        "torch_dtype": "float32",
    }
    return {
        "architectures": ["Blip2ForConditionalGeneration"],
        "model_type": "blip-2",
        "image_token_index": len(SPECIAL_TOKENS),
        "num_query_tokens": QUERIES,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_decoder_only_language_model": True,
        "text_config": configuration(LLAMA),
        "vision_config": {
            **common,
            "model_type": "blip_2_vision_model",
            "attention_dropout": 0.0,
            "image_size": IMAGE_SIZE,
            "layer_norm_eps": 1e-6,
            "patch_size": PATCH_SIZE,
            "qkv_bias": True,
        },
        "qformer_config": {
            **common,
            "model_type": "blip_2_qformer",
            "attention_probs_dropout_prob": 0.0,
            "cross_attention_frequency": 2,
            "encoder_hidden_size": VISION_HIDDEN,
            "hidden_dropout_prob": 0.0,
            "layer_norm_eps": 1e-12,
            "vocab_size": 1,
        },
    }


def _eyes() -> dict[str, Any]:
    """Return the weights of encoder, Q-Former and projection: name -> float32 array."""
    import numpy as np

    draw = drawer(20260412)
    weights: dict[str, Any] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = draw(rows, columns, scale=(3.0 / columns) ** 0.5)
        weights[f"{name}.bias"] = draw(rows, scale=0.1)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = np.ones(VISION_HIDDEN, dtype=np.float32)
        weights[f"{name}.bias"] = np.zeros(VISION_HIDDEN, dtype=np.float32)

    at = "vision_model.embeddings"
    patch = (3, PATCH_SIZE, PATCH_SIZE)
    scale = (3.0 / (3 * PATCH_SIZE**2)) ** 0.5
    weights[f"{at}.class_embedding"] = draw(1, 1, VISION_HIDDEN, scale=1.0)
    weights[f"{at}.patch_embedding.weight"] = draw(VISION_HIDDEN, *patch, scale=scale)
    weights[f"{at}.patch_embedding.bias"] = draw(VISION_HIDDEN, scale=0.1)
    positions = (IMAGE_SIZE // PATCH_SIZE) ** 2 + 1
    weights[f"{at}.position_embedding"] = draw(1, positions, VISION_HIDDEN, scale=0.5)
    for layer in range(VISION_LAYERS):
        at = f"vision_model.encoder.layers.{layer}"
        linear(f"{at}.self_attn.qkv", 3 * VISION_HIDDEN, VISION_HIDDEN)
        linear(f"{at}.self_attn.projection", VISION_HIDDEN, VISION_HIDDEN)
        linear(f"{at}.mlp.fc1", VISION_INTERMEDIATE, VISION_HIDDEN)
        linear(f"{at}.mlp.fc2", VISION_HIDDEN, VISION_INTERMEDIATE)
        norm(f"{at}.layer_norm1")
        norm(f"{at}.layer_norm2")
    norm("vision_model.post_layernorm")

    weights["query_tokens"] = draw(1, QUERIES, VISION_HIDDEN, scale=1.0)
    norm("qformer.layernorm")
    for layer in range(VISION_LAYERS):
        at = f"qformer.encoder.layer.{layer}"
        # Every second layer looks at the image.
        for attention in ("attention", "crossattention")[: 2 - layer % 2]:
            for part in ("query", "key", "value"):
                linear(f"{at}.{attention}.attention.{part}", VISION_HIDDEN, VISION_HIDDEN)
            linear(f"{at}.{attention}.output.dense", VISION_HIDDEN, VISION_HIDDEN)
            norm(f"{at}.{attention}.output.LayerNorm")
        linear(f"{at}.intermediate_query.dense", VISION_INTERMEDIATE, VISION_HIDDEN)
        linear(f"{at}.output_query.dense", VISION_HIDDEN, VISION_INTERMEDIATE)
        norm(f"{at}.output_query.LayerNorm")
    linear("language_projection", HIDDEN, VISION_HIDDEN)
    return weights
