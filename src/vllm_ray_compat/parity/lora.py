"""Small LoRA adapters for the model of a run: random, the same bytes every time, no download."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from vllm_ray_compat.parity.tiny_model import cache_root, make_once

RANK = 8
#: What the adapters change; a Llama has them all.
_TARGETS = ("q_proj", "v_proj")


def lora_requests(names: Sequence[str], model: Path) -> dict[str, Any]:
    """Return name -> ``LoRARequest`` for adapters of *model*, made on first use.

    Raises:
        OSError: the cache folder cannot be written.
        KeyError: the configuration of *model* lacks the sizes an adapter needs.
    """
    if not names:
        return {}
    from vllm.lora.request import LoRARequest

    return {
        name: LoRARequest(name, number, str(ensure_adapter(name, model)))
        for number, name in enumerate(names, 1)
    }


def ensure_adapter(name: str, model: Path, root: Path | None = None) -> Path:
    """Return the folder of adapter *name* for *model*; it is whole, or not there."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    sizes = {k: config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    sizes["num_key_value_heads"] = config.get("num_key_value_heads", sizes["num_attention_heads"])
    sizes["head_dim"] = config.get("head_dim") or (
        sizes["hidden_size"] // sizes["num_attention_heads"]
    )
    key = crc32(json.dumps([name, RANK, sizes], sort_keys=True).encode())
    parent = (cache_root() if root is None else root) / "adapters"
    write = partial(_write, seed=key, sizes=sizes)
    return make_once(parent / f"{name}-{key:08x}", "adapter_config.json", write)


def _write(folder: Path, seed: int, sizes: dict[str, int]) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.Generator(np.random.PCG64(seed))
    rows = {
        "q_proj": sizes["num_attention_heads"] * sizes["head_dim"],
        "v_proj": sizes["num_key_value_heads"] * sizes["head_dim"],
    }
    tensors = {}
    for layer in range(sizes["num_hidden_layers"]):
        for target in _TARGETS:
            at = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            for part, shape in (("A", (RANK, sizes["hidden_size"])), ("B", (rows[target], RANK))):
                drawn = (rng.random(shape) * 2 - 1) * 0.3
                tensors[f"{at}.lora_{part}.weight"] = drawn.astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(  # last: its presence says that all is there
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": RANK,
                "lora_alpha": RANK,
                "target_modules": list(_TARGETS),
                "bias": "none",
                "base_model_name_or_path": os.fspath("model"),
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
