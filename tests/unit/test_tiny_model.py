from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_ray_compat.parity import tiny_model, tiny_vision
from vllm_ray_compat.parity.models import ModelError, find_model

_FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
_PROCESSOR = ["preprocessor_config.json", "processor_config.json"]


@pytest.mark.parametrize(
    ("write", "files"),
    [
        (tiny_model.write_tiny_model, _FILES),
        (tiny_model.write_tiny_moe, _FILES),
        (tiny_vision.write_tiny_vision, sorted(_FILES + _PROCESSOR)),
    ],
    ids=["tiny", "tiny-moe", "tiny-vision"],
)
def test_the_same_bytes_every_time(
    tmp_path: Path, write: Callable[[Path], None], files: list[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        write(folder)
    names = sorted(p.name for p in one.iterdir())
    assert names == files
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_splits_into_four_ranks_and_four_stages() -> None:
    assert tiny_model.HEADS % 4 == 0
    assert tiny_model.KV_HEADS % 4 == 0
    assert tiny_model.LAYERS % 4 == 0
    assert tiny_vision.VISION_HEADS % 4 == 0


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    tiny_vision.write_tiny_vision(folder)
    return folder


class TestTheModelThatSees:
    def test_its_image_token_is_one_token_and_the_one_of_its_configuration(
        self, seeing: Path
    ) -> None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(seeing / "tokenizer.json"))
        config = json.loads((seeing / "config.json").read_text())
        assert tokenizer.encode("<image>").ids == [config["image_token_index"]]
        assert tokenizer.get_vocab_size() == config["text_config"]["vocab_size"]

    def test_an_image_is_as_many_positions_for_the_processor_as_for_the_model(
        self, seeing: Path
    ) -> None:
        config = json.loads((seeing / "config.json").read_text())
        processor = json.loads((seeing / "processor_config.json").read_text())
        assert processor["num_query_tokens"] == config["num_query_tokens"] == tiny_vision.QUERIES

    def test_it_is_small(self, seeing: Path) -> None:
        assert sum(p.stat().st_size for p in seeing.iterdir()) < 6_000_000

    def test_its_language_model_is_the_tiny_one(self, seeing: Path) -> None:
        from safetensors.numpy import load_file

        weights = load_file(seeing / "model.safetensors")
        for name, array in tiny_model.llama_weights().items():
            assert (weights[f"language_model.{name}"] == array).all()


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


@pytest.mark.parametrize("name", ["tiny", "tiny-moe", "tiny-vision"])
def test_tiny_models_run_in_float32(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = find_model(name)
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
