"""Stepping an engine: what is kept of each request. The engine is made up, and scripted."""

from __future__ import annotations

from types import SimpleNamespace as N
from typing import Any

import pytest

from vllm_ray_compat.parity.answers import fault, first_fault, generated, unmet
from vllm_ray_compat.parity.drive import Driven, drive
from vllm_ray_compat.parity.synthetic import synthetic_capture
from vllm_ray_compat.parity.workloads import Prompt, Request, Workload

from .helpers import output, result


def request(name: str, **more: Any) -> Request:
    return Request(id=name, prompt=Prompt(text=name), **more)


class Engine:
    """Gives every request a token a step; ``length`` of each is what it was added with."""

    def __init__(self, preempted: bool = False) -> None:
        self.live: dict[str, dict[str, Any]] = {}
        self.aborted: list[str] = []
        scheduler = N(requests={})
        self.engine_core = N(engine_core=N(scheduler=scheduler)) if preempted else N()
        self.scheduler = scheduler

    def add_request(self, request_id: str, prompt: str, length: int, n: int = 1) -> None:
        if length < 0:
            raise ValueError("negative length")
        self.live[request_id] = {"prompt": prompt, "length": length, "at": 0, "n": n}
        self.scheduler.requests[request_id] = N(
            request_id=f"{request_id}-1a2b", num_preemptions=length // 4
        )

    def abort_request(self, ids: list[str]) -> None:
        for one in ids:
            self.aborted.append(self.live.pop(one)["prompt"])

    def step(self) -> list[Any]:
        outputs = []
        for name, one in list(self.live.items()):
            one["at"] += 1
            finished = one["at"] >= one["length"]
            # With n > 1 vLLM tells of one completion at a time.
            outputs += [
                N(
                    request_id=name,
                    finished=finished and index == one["n"] - 1,
                    outputs=[completion(index, one["at"], "length" if finished else None)],
                    prompt_token_ids=[1],
                    prompt_logprobs=None,
                    num_cached_tokens=0,
                )
                for index in range(one["n"])
            ]
            if finished:
                del self.live[name]
        return outputs


def completion(index: int, tokens: int, reason: str | None) -> Any:
    return N(
        index=index,
        token_ids=list(range(tokens)),
        text="x" * tokens,
        finish_reason=reason,
        stop_reason=None,
        cumulative_logprob=None,
        logprobs=None,
    )


def test_tokens_steps_and_times_are_kept() -> None:
    short, long = drive(
        Engine(),
        [
            (request("s"), {"prompt": "s", "length": 2}),
            (request("l"), {"prompt": "l", "length": 3}),
        ],
    )
    assert (short.steps, long.steps) == ([0, 1], [0, 1, 2])
    assert len(long.times_s) == 3
    assert long.times_s == sorted(long.times_s)
    record = generated("w", long)
    assert record.outputs[0].token_ids == [0, 1, 2]
    assert record.preemptions is None  # the scheduler of this engine is not to be seen
    assert record.token_steps is None  # nor are its steps


def test_every_completion_is_kept() -> None:
    [one] = drive(Engine(), [(request("n"), {"prompt": "n", "length": 2, "n": 3})])
    assert [output.index for output in generated("w", one).outputs] == [0, 1, 2]


def test_a_refusal_is_an_answer_and_the_others_go_on() -> None:
    bad, worse, good = drive(
        Engine(),
        [
            (request("b", refused=True), {"prompt": "b", "length": -1}),
            (request("c", refused=True), {"error": TypeError("no such parameter")}),
            (request("g"), {"prompt": "g", "length": 1}),
        ],
    )
    assert generated("w", bad).error is not None
    record = generated("w", worse)
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("TypeError", "no such parameter")
    assert good.last.finished


def test_a_request_is_aborted_when_it_is_due() -> None:
    engine = Engine()
    aborted, other = drive(
        engine,
        [
            (request("a", abort_after=2), {"prompt": "a", "length": 9}),
            (request("o"), {"prompt": "o", "length": 4}),
        ],
    )
    assert engine.aborted == ["a"]
    assert aborted.aborted
    assert len(aborted.steps) == 2
    assert len(other.steps) == 4


def test_preemptions_are_counted_where_the_scheduler_can_be_seen() -> None:
    often, never = drive(
        Engine(preempted=True),
        [
            (request("p"), {"prompt": "p", "length": 9}),
            (request("q"), {"prompt": "q", "length": 2}),
        ],
    )
    assert (often.preemptions, never.preemptions) == (2, 0)
    assert generated("w", never).token_steps == [0, 1]


def test_a_grammar_decides_when_a_request_begins() -> None:
    grammar = request("g", sampling={"structured_outputs": {"choice": ["a"]}})
    [one] = drive(Engine(preempted=True), [(grammar, {"prompt": "g", "length": 2})])
    assert generated("w", one).token_steps is None


def test_an_engine_that_dies_is_told() -> None:
    class Dying(Engine):
        def step(self) -> list[Any]:
            raise RuntimeError("the worker of rank 1 died")

    with pytest.raises(RuntimeError, match="rank 1 died"):
        drive(Dying(), [(request("a"), {"prompt": "a", "length": 1})])


def ended(reason: str | None, tokens: int = 3, **more: Any) -> Driven:
    one = Driven(request("r", **more))
    one.outputs[0] = completion(0, tokens, reason)
    one.last = N(prompt_token_ids=[1], prompt_logprobs=None, num_cached_tokens=0)
    return one


@pytest.mark.parametrize(
    ("driven", "said"),
    [
        (ended("length"), None),
        (ended("abort"), "ended with finish reason 'abort'"),
        (ended(None, 3, abort_after=3), None),
        (ended("stop", 2, abort_after=3), "ended before it could be aborted, after 2 tokens"),
        (ended("stop", refused=True), "was to be refused, and was answered"),
        (Driven(request("r"), refused=ValueError("no")), "was refused: ValueError: no"),
        (Driven(request("r", refused=True), refused=ValueError("no")), None),
    ],
)
def test_how_a_request_must_end(driven: Driven, said: str | None) -> None:
    assert fault(driven.request, generated("w", driven)) == said


def test_a_workload_that_proves_nothing_says_so() -> None:
    one = ended("length")
    one.preemptions = 0
    workload = Workload(name="w", about="", expects=("preemption",), requests=(one.request,))
    assert first_fault(workload, [generated("w", one)]) == (
        "workload w: no request was preempted; the KV cache is too large"
    )
    one.preemptions = 1
    assert first_fault(workload, [generated("w", one)]) is None


def test_a_workload_of_async_scheduling_wants_an_engine_that_has_it() -> None:
    """vLLM turns it off by itself, on the CPU for one; two arms without it agree, too."""
    workload = Workload(name="w", about="", expects=("async-scheduling",), requests=(request("r"),))
    engine = synthetic_capture().engine
    assert engine is not None
    without, with_it = (engine.model_copy(update={"async_scheduling": x}) for x in (False, True))
    assert unmet(workload, with_it) is None
    assert unmet(workload, without) == "workload w: vLLM has turned async scheduling off"
    assert unmet(workload.model_copy(update={"expects": ()}), without) is None


class TestImagesThatMustBeSeen:
    """A model that never gets an image answers all the same: two blind arms agree, too."""

    def ask(self, *asked: tuple[str, str, int | None]) -> Workload:
        return Workload(
            name="w",
            about="",
            expects=("images",),
            requests=tuple(
                Request(
                    id=name,
                    prompt=Prompt(text=text, images=() if seed is None else ({"seed": seed},)),
                )
                for name, text, seed in asked
            ),
        )

    def answers(self, *tokens: int) -> list[Any]:
        return [
            result(request=str(n), outputs=[output(token_ids=[t])]) for n, t in enumerate(tokens)
        ]

    def test_two_images_and_one_answer(self) -> None:
        workload = self.ask(("a", "x", 1), ("b", "y", 1), ("c", "x", 2))
        assert first_fault(workload, self.answers(5, 6, 7)) is None
        assert first_fault(workload, self.answers(5, 5, 5)) == (
            "workload w: a and c have other images, and one answer"
        )

    def test_an_image_and_none(self) -> None:
        workload = self.ask(("a", "x", None), ("b", "x", 2))
        assert first_fault(workload, self.answers(5, 5)) is not None

    def test_the_same_image_has_the_same_answer(self) -> None:
        workload = self.ask(("a", "x", 1), ("b", "x", 1), ("c", "x", 2))
        assert first_fault(workload, self.answers(5, 5, 6)) is None

    def test_images_that_nothing_shows(self) -> None:
        workload = self.ask(("a", "x", 1), ("b", "y", 2))
        assert first_fault(workload, self.answers(5, 6)) == (
            "workload w: no two requests differ in their images alone"
        )

    def test_logprobs_alone_are_enough(self) -> None:
        other = self.answers(5, 5)
        other[1].outputs[0].logprobs = [[(5, -0.125, 1)]]
        assert first_fault(self.ask(("a", "x", 1), ("b", "x", 2)), other) is None

    def test_where_nothing_is_expected_nothing_is_asked(self) -> None:
        workload = self.ask(("a", "x", 1), ("b", "x", 2)).model_copy(update={"expects": ()})
        assert first_fault(workload, self.answers(5, 5)) is None
