from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_ray_compat.parity import tiny_model
from vllm_ray_compat.parity.models import ModelError, find_model


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        tiny_model.write_tiny_model(folder)
    names = sorted(p.name for p in one.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_splits_into_four_ranks_and_four_stages() -> None:
    assert tiny_model.HEADS % 4 == 0
    assert tiny_model.KV_HEADS % 4 == 0
    assert tiny_model.LAYERS % 4 == 0


def test_the_vocabulary_is_the_tokenizers(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tiny_model.write_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == tiny_model.VOCABULARY
    text = "bytes of any text: ß 結果 🙂 \x00"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_made_once_and_whole(tmp_path: Path) -> None:
    first = tiny_model.ensure_tiny_model(tmp_path)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert tiny_model.ensure_tiny_model(tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert [p.name for p in first.parent.iterdir()] == [first.name]  # no temporary folder is left


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model, "write_tiny_model", broken)
    with pytest.raises(KeyboardInterrupt):
        tiny_model.ensure_tiny_model(tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny_model.cache_root() == tmp_path / "vllm-ray-compat"


def test_tiny_runs_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = find_model("tiny")
    assert (model.heads, model.layers, model.engine_args) == (8, 4, {"dtype": "float32"})


@pytest.mark.parametrize("name", ["/no/such/folder", "./nor-this", "acme/not-in-the-cache", "bare"])
def test_a_model_that_does_not_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        find_model(name)


@pytest.mark.parametrize(
    ("config", "fault"),
    [(None, "no config.json"), ("{", "cannot be read"), ("{}", "names no num_attention_heads")],
)
def test_a_folder_that_is_no_model(tmp_path: Path, config: str | None, fault: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError, match=fault):
        find_model(str(tmp_path))


def test_sizes_of_a_multimodal_model(tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 12, "num_hidden_layers": 6}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": sizes}))
    model = find_model(str(tmp_path))
    assert (model.heads, model.layers) == (12, 6)
