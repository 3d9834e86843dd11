"""Find the model of a run and read what its topologies depend on, before anything starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_ray_compat.errors import UnusableEnvironmentError, UsageError
from vllm_ray_compat.parity.tiny_model import cache_root, ensure_tiny_model, ensure_tiny_moe
from vllm_ray_compat.parity.tiny_vision import ensure_tiny_vision

#: Models that are made here, on first use.
_MADE = {
    "tiny": ensure_tiny_model,
    "tiny-moe": ensure_tiny_moe,
    "tiny-vision": ensure_tiny_vision,
}


class ModelError(UsageError):
    """A model that is not there, or whose configuration cannot be read."""


@dataclass(frozen=True)
class Model:
    """A model on disk: its folder, and the sizes that limit its topologies."""

    name: str
    folder: Path
    heads: int
    layers: int
    engine_args: dict[str, Any]


def find_model(name: str) -> Model:
    """Find a model made here, a folder, or a model in the Hugging Face cache; no download.

    Made here, on first use, are ``tiny``, ``tiny-moe`` and ``tiny-vision``.

    Raises:
        ModelError: nothing is there, or ``config.json`` lacks the number of heads or layers.
    """
    if name in _MADE:
        try:
            folder = _MADE[name]()
        except OSError as error:
            raise UnusableEnvironmentError(
                f"The model {name} cannot be written to {cache_root()}: {error.strerror}. Set "
                "XDG_CACHE_HOME to a folder that can be written."
            ) from None
        # "auto" would turn float32 into bfloat16.
        return _read(name, folder, {"dtype": "float32"})
    try:
        folder = Path(name).expanduser()
        is_folder = bool(name) and folder.is_dir()
    except (OSError, RuntimeError, ValueError):  # too long, no such home, a zero byte
        is_folder = False
    if is_folder:
        return _read(name, folder.resolve(), {})
    cached = _in_cache(name)
    if cached is not None:
        return _read(name, cached, {})
    raise ModelError(
        f"Model {name!r} does not exist: it is neither a folder nor in the local Hugging Face "
        "cache. Name a folder that holds config.json, download the model first, or use "
        "--model tiny."
    )


def _in_cache(name: str) -> Path | None:
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError, OSError):  # not a name it knows how to look up
        return None
    return Path(found).parent if isinstance(found, str) else None


def _read(name: str, folder: Path, engine_args: dict[str, Any]) -> Model:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"Model {name!r}: there is no config.json in {folder}.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"Model {name!r}: {path} cannot be read: {error}.") from None
    # Multimodal models keep the sizes of their language model one level down.
    config = config if isinstance(config, dict) else {}
    inner = config.get("text_config")
    sizes = inner if isinstance(inner, dict) else config
    heads, layers = sizes.get("num_attention_heads"), sizes.get("num_hidden_layers")
    if not (isinstance(heads, int) and heads > 0 and isinstance(layers, int) and layers > 0):
        raise ModelError(
            f"Model {name!r}: {path} names no num_attention_heads and num_hidden_layers, so its "
            "topologies cannot be checked."
        )
    return Model(name, folder, heads, layers, engine_args)
