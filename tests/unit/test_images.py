"""Images in a suite: the same everywhere, and given to vLLM with the prompt."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace as N
from typing import Any

import pytest

from vllm_ray_compat.parity.asking import prompt_of
from vllm_ray_compat.parity.workloads import Prompt, Request, load_suite
from vllm_ray_compat.parity.workloads.images import Image


def test_the_same_numbers_are_the_same_image_on_every_machine() -> None:
    pixels = Image(size=(64, 48), seed=1).pixels()
    assert len(pixels) == 64 * 48 * 3
    assert hashlib.sha256(pixels).hexdigest()[:16] == "1cdf9c65142d509b"


def test_another_seed_is_another_image() -> None:
    assert len({Image(seed=seed).pixels() for seed in range(64)}) == 64


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 4), (200, 50), (50, 200)])
def test_every_size_is_filled(size: tuple[int, int]) -> None:
    width, height = size
    assert len(Image(size=size, seed=7).pixels()) == 3 * width * height


def test_four_by_four_tiles() -> None:
    size = 32
    pixels = Image(size=(size, size), seed=1).pixels()
    tiles = {
        (x // 8, y // 8, pixels[3 * (y * size + x) :][:3]) for x in range(size) for y in range(size)
    }
    assert len(tiles) == 16, "one colour a tile"
    assert len({colour for *_, colour in tiles}) == 16


def llm() -> Any:
    """Stand in for vLLM's ``LLM`` as far as a prompt needs it."""
    template = lambda messages, tokenize, add_generation_prompt: f"<{messages[0]['content']}>"  # noqa: E731
    return N(get_tokenizer=lambda: N(apply_chat_template=template))


@pytest.mark.parametrize(
    ("prompt", "rendered"),
    [
        ({"text": "ab", "times": 2}, {"prompt": "abab"}),
        ({"token_ids": [4, 5]}, {"prompt_token_ids": [4, 5]}),
        ({"messages": [{"role": "user", "content": "Hi"}]}, {"prompt": "<Hi>"}),
    ],
)
def test_images_go_with_every_kind_of_prompt(prompt: Any, rendered: Any) -> None:
    images = [{"size": [8, 4], "seed": 1}, {"size": [2, 2], "seed": 2}]
    asked = prompt_of(llm(), Request(id="a", prompt=Prompt(**prompt, images=images)))
    found = asked.pop("multi_modal_data").pop("image")
    assert asked == rendered
    assert [(one.mode, one.size) for one in found] == [("RGB", (8, 4)), ("RGB", (2, 2))]
    assert [one.tobytes() for one in found] == [Image(**one).pixels() for one in images]


@pytest.mark.parametrize("prompt", [{"text": "ab"}, {"token_ids": [4, 5]}])
def test_without_images_a_prompt_is_what_it_was(prompt: Any) -> None:
    asked = Request(id="a", prompt=Prompt(**prompt))
    assert prompt_of(llm(), asked) == asked.prompt.render()


def test_the_suite_asks_for_images_that_are_seen_cached_and_refused() -> None:
    suite = load_suite("full")
    first, again = (w for w in suite.workloads if w.profile == "images")
    assert suite.profiles["images"].model == "tiny-vision"
    assert first.expects == again.expects == ("images",)
    asked = {r.id: r.prompt for r in first.requests}
    assert asked["first"].text == asked["second"].text == asked["none"].text
    assert not asked["none"].images
    assert asked["first"].images == asked["first-again"].images != asked["second"].images
    assert {r.prompt.images for r in again.requests} & {r.prompt.images for r in first.requests}
    assert [r.id for r in first.requests if r.refused] == ["two-at-once"]
