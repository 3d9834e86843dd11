"""A made-up capture that holds everything a real one can, for the self test to alter.

Its numbers come from a seeded generator. It says of itself that it is synthetic: its backend and
executor are named so, and it is never written into a report.
"""

from __future__ import annotations

from random import Random

from vllm_ray_compat.parity import capture as cap

NAME = "synthetic"

_VOCABULARY = 32_000
_PER_NODE = 2


def synthetic_capture(seed: int = 0) -> cap.Capture:
    """Return a capture of six workloads on four ranks of two nodes; equal for equal seeds."""
    random = Random(seed)
    results = [
        *(_result(random, "greedy", f"g{i}", tokens=12 + 8 * i) for i in range(4)),
        *(_result(random, "logprobs", f"top{k}", tokens=16, top=k) for k in (1, 5, 20)),
        *(_result(random, "several", f"n{n}", tokens=10, completions=n, top=2) for n in (2, 3)),
        *(_result(random, "stop", f"s{i}", tokens=5 + i, stop=True) for i in range(3)),
        *(_result(random, "prefix", f"p{i}", tokens=8, cached=16 * i) for i in range(4)),
        *(_refusal(f"r{i}", error) for i, error in enumerate(_REFUSALS)),
    ]
    return cap.Capture(
        header=cap.Header(
            role="reference",
            backend=NAME,
            topology="tp2pp2",
            suite=NAME,
            model=NAME,
            engine_core="inproc",
            started_at=0.0,
        ),
        engine=_engine(random),
        results=results,
        end=cap.End(
            workloads_s={r.workload: random.uniform(0.1, 2) for r in results},
            shutdown_s=0.1,
            total_s=random.uniform(20, 40),
        ),
    )


_REFUSALS = (
    ("ValueError", "The prompt of 900 tokens is longer than the maximum of 768"),
    ("ValueError", "temperature must be non-negative, got -1.0"),
)


def _refusal(request: str, error: tuple[str, str]) -> cap.Result:
    kind, message = error
    return cap.Result(
        workload="refused", request=request, error=cap.RequestError(type=kind, message=message)
    )


def _result(
    random: Random,
    workload: str,
    request: str,
    *,
    tokens: int,
    completions: int = 1,
    top: int | None = None,
    stop: bool = False,
    cached: int = 0,
) -> cap.Result:
    prompt = [random.randrange(_VOCABULARY) for _ in range(random.randint(4, 24))]
    step = random.uniform(0.005, 0.05)
    return cap.Result(
        workload=workload,
        request=request,
        outputs=[_output(random, index, tokens, top, stop) for index in range(completions)],
        prompt_token_ids=prompt,
        prompt_logprobs=(
            None if top is None else [None, *(_entries(random, t, top) for t in prompt[1:])]
        ),
        num_cached_tokens=cached,
        token_times_s=[step * (i + 1) for i in range(tokens)],
    )


def _output(random: Random, index: int, count: int, top: int | None, stop: bool) -> cap.Output:
    tokens = [random.randrange(_VOCABULARY) for _ in range(count)]
    logprobs = None if top is None else [_entries(random, token, top) for token in tokens]
    return cap.Output(
        index=index,
        token_ids=tokens,
        text="".join(random.choice('abcdefgh éß結果\n"') for _ in range(3 * count)),
        finish_reason="stop" if stop else "length",
        stop_reason=tokens[-1] if stop else None,
        cumulative_logprob=(
            None if logprobs is None else sum(float(entries[0][1]) for entries in logprobs)
        ),
        logprobs=None if logprobs is None else list(logprobs),
    )


def _entries(random: Random, token: int, top: int) -> list[cap.LogprobEntry]:
    logprobs = sorted((-random.expovariate(0.5) for _ in range(top)), reverse=True)
    others = random.sample(range(token + 1, token + 2 * top + 2), top - 1)
    return [(t, p, i + 1) for i, (t, p) in enumerate(zip([token, *others], logprobs, strict=True))]


def _engine(random: Random) -> cap.Engine:
    nodes = [f"{random.getrandbits(224):056x}" for _ in range(2)]
    return cap.Engine(
        executor=f"{NAME}:Executor",
        executor_read_from="engine",
        provider=NAME,
        vllm="0.0.0",
        ray=None,
        torch="0.0.0",
        python="0.0.0",
        dtype="float32",
        async_scheduling=False,
        enforce_eager=True,
        v2_model_runner=False,
        workers=[
            cap.Worker(
                rank=rank,
                local_rank=rank % _PER_NODE,
                pid=random.randrange(1 << 22),
                node_ip=f"192.0.2.{rank // _PER_NODE + 1}",
                node_id=nodes[rank // _PER_NODE],
                worker_class=f"{NAME}:Worker",
                devices={"GPU": [str(rank % _PER_NODE)]},
            )
            for rank in range(4)
        ],
        start_s=random.uniform(10, 30),
    )
