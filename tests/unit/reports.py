"""Reports made by hand, as a run would write them, and texts that must not do anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import noise
from vllm_ray_compat.parity.compare import compare, differences
from vllm_ray_compat.parity.latency import latency_of
from vllm_ray_compat.parity.logprob_gaps import logprob_gaps
from vllm_ray_compat.parity.report import data as rep

from . import helpers

#: What a model or a user may put into any text; each must be shown and do nothing.
HOSTILE: tuple[str, ...] = (
    "<script>alert(1)</script>",
    "</code></td></tr></table><img src=x onerror=alert(1)>",
    "a ]]> b <![CDATA[ c",
    "nul \x00 bell \x07 vt \x0b ffff \uffff",
    "a | b \\| c \\",
    "`` ` ``` tick",
    "one\ntwo\r\n\n# three\n- four",
    "\x1b[2J\x1b[31mred\x1b[0m\x1b]0;title\x07 \x9b31m",
    "[link](http://example.invalid) @someone #12 :x: **bold** _it_ $x$",
    "\u202egnp.exe \u200bzero \u2066width",
    "\ud800 alone",
    "{{ 7*7 }} {% raw %} {# no #}",
    '\'" onmouseover="alert(1)',
    "$\\frac{1}{2}$",
)

#: Requests of each workload of the made-up suite, and what it is about.
WORKLOADS = {"greedy": 4, "seeded": 5, "logprobs": 3, "chunked-prefill": 2}
ABOUT = {
    "greedy": "Batched greedy decoding.",
    "seeded": "Sampling with a seed, two temperatures.",
    "logprobs": "Top-5 logprobs of prompt and output.",
    "chunked-prefill": "Prompts longer than a step's token budget.",
}


def results(seed: float = 0.0, slower: float = 1.0) -> list[cap.Result]:
    """The answers of a run of the suite in ``WORKLOADS``; times differ by *seed* and *slower*."""
    made = []
    noise_ = random.Random(seed)
    for workload, requests in WORKLOADS.items():
        for index in range(requests):
            tokens = [15 + index, 6, 7, 8] * 6
            times = [slower * noise_.lognormvariate(-3.2, 0.25)]
            for _ in tokens[1:]:
                times.append(times[-1] + slower * noise_.lognormvariate(-5.5, 0.35))
            text = helpers.output(
                token_ids=tokens,
                text="abcd" * 6,
                logprobs=[[(t, -0.5 - i / 64, 1), (9, -1.5, 2)] for i, t in enumerate(tokens)],
            )
            made.append(helpers.result(workload, f"r{index}", outputs=[text], token_times_s=times))
    return made


def engine(backend: str, **changes: Any) -> dict[str, Any]:
    names = {
        "legacy": "vllm.v1.executor.ray_executor:RayDistributedExecutor",
        "v2": "vllm.v1.executor.ray_executor_v2:RayExecutorV2",
        "mp": "vllm.v1.executor.multiproc_executor:MultiprocExecutor",
    }
    return {
        "executor": names.get(backend, backend),
        "executor_read_from": "engine",
        "provider": "vllm",
        "repairs": ["v2-shutdown", "v2-store-port"] if backend == "v2" else [],
        "vllm": "0.32.0",
        "ray": "2.60.0",
        "torch": "2.13.0+cpu",
        "python": "3.11.7",
        "dtype": "torch.float32",
        "async_scheduling": False,
        "v2_model_runner": False,
        **changes,
    }


def arm(
    topology: str, backend: str, role: str, results: Sequence[cap.Result], **changes: Any
) -> rep.Arm:
    label = f"{topology}-{role}-{backend}"
    base = {
        "label": label,
        "role": role,
        "backend": backend,
        "topology": topology,
        "expected_executor": engine(backend)["executor"],
        **engine(backend),
        "workers": [
            {
                "rank": rank,
                "local_rank": rank,
                "pid": 4000 + rank,
                "node_ip": "192.0.2.2",
                "worker_class": "vllm.v1.worker.cpu_worker:CPUWorker",
                "actor_class": "vllm.v1.executor.ray_executor_v2:RayWorkerProc",
                "devices": {"GPU": [str(rank)]},
            }
            for rank in range(2)
        ],
        "timings": {
            "engine_start_s": 23.1,
            "workloads_s": dict.fromkeys(WORKLOADS, 3.25),
            "shutdown_s": 1.0,
            "total_s": 38.4,
        },
        "latency": latency_of(results).model_dump(),
        "capture": f"{label}.jsonl",
        "log": f"{label}.log",
        "failure": None,
        "log_tail": [],
    }
    return rep.Arm.model_validate({**base, **changes})


def failed_arm(topology: str, backend: str, role: str, failure: str, tail: list[str]) -> rep.Arm:
    nothing: dict[str, Any] = dict.fromkeys(engine(backend))
    timings = {"engine_start_s": None, "workloads_s": {}, "shutdown_s": None, "total_s": 41.0}
    return arm(
        topology, backend, role, [], **nothing, workers=[], timings=timings, latency=None,
        failure=failure, log_tail=tail,
    )  # fmt: skip


class Builder:
    """Puts a report together from results, comparing them as a run does."""

    def __init__(self) -> None:
        self.arms: list[rep.Arm] = []
        self.verdicts: list[rep.TopologyVerdict] = []
        self.comparisons: list[Any] = []
        self.floors: list[rep.NoiseFloor] = []
        self.gaps: list[rep.LogprobGaps] = []

    def topology(
        self,
        name: str,
        reference: list[cap.Result],
        candidates: dict[str, list[cap.Result]],
        again: list[cap.Result],
        backend: str = "legacy",
    ) -> Builder:
        def capture(backend: str, results: list[cap.Result]) -> cap.Capture:
            header = helpers.header(backend=backend, topology=name)
            return cap.Capture(header=header, results=results)

        right = capture(backend, reference)
        floor = differences(compare(name, right, capture(backend, again), f"{backend} again"))
        self.floors.append(
            rep.NoiseFloor(
                topology=name, reference=backend, runs=2, requests=len(reference), differences=floor
            )
        )
        self._gap(name, backend, f"{backend} again", reference, again)
        self.arms.append(arm(name, backend, "reference", reference))
        for candidate, answers in candidates.items():
            found = compare(name, right, capture(candidate, answers))
            self._gap(name, backend, candidate, reference, answers)
            self.comparisons += found
            self.verdicts.append(
                rep.TopologyVerdict(
                    topology=name,
                    reference=backend,
                    candidate=candidate,
                    verdict=noise.judge(floor, found),
                    requests=len({(c.workload, c.request) for c in found}),
                    different=len({(c.workload, c.request) for c in differences(found)}),
                )
            )
            self.arms.append(arm(name, candidate, "candidate", answers))
        self.arms.append(arm(name, backend, "reference-again", again))
        return self

    def _gap(self, topology: str, reference: str, candidate: str, a: Any, b: Any) -> None:
        self.gaps.append(
            rep.LogprobGaps(
                topology=topology,
                reference=reference,
                candidate=candidate,
                **logprob_gaps(a, b).model_dump(),
            )
        )

    def report(self, **changes: Any) -> rep.Report:
        base: dict[str, Any] = {
            "verdict": noise.worst([v.verdict for v in self.verdicts]),
            "vllm": "0.32.0",
            "suite": "smoke",
            "workloads": [
                rep.SuiteWorkload(name=n, about=ABOUT[n], requests=r) for n, r in WORKLOADS.items()
            ],
            "model": "tiny",
            "engine_core": "inproc",
            "started_at": "2026-01-02T03:04:05+00:00",
            "took_s": 298.0,
            "topologies": self.verdicts,
            "arms": self.arms,
            "comparisons": self.comparisons,
            "noise_floor": self.floors,
            "logprob_gaps": self.gaps,
            "known_differences": list(rep.KNOWN_DIFFERENCES),
            "injected_fault": None,
            "left_behind": [],
            "environment_failure": False,
        }
        return rep.Report(**{**base, **changes})


def passing() -> rep.Report:
    made = Builder()
    for seed, topology in enumerate(("tp2", "pp2", "tp2pp2")):
        made.topology(
            topology,
            results(seed),
            {"v2": results(seed + 0.1, 0.9), "mp": results(seed + 0.2, 0.7)},
            results(seed + 0.3),
        )
    return made.report()


def failing() -> rep.Report:
    """A candidate that differs in a token and logprobs, noise, and an arm that crashed."""
    made = Builder()
    wrong = results(1.5, 1.2)
    wrong[5].outputs[0].token_ids[11] ^= 1
    wrong[5].outputs[0].text = wrong[5].outputs[0].text[:11] + "<b>?"
    for result in wrong[9:12]:
        for position, entries in enumerate(result.outputs[0].logprobs or []):
            if entries is not None and position > 3:
                token, value, rank = entries[0]
                entries[0] = (token, float(value) - 1e-7 * 2**position, rank)
    made.topology("tp2", results(1), {"v2": wrong, "mp": results(1.2, 0.7)}, results(1.3))
    noisy = results(2.3)
    noisy[0].outputs[0].text += "!"
    made.topology("pp2", results(2), {"v2": results(2.1), "mp": results(2.2, 0.6)}, noisy)
    made.arms.append(arm("tp2pp2", "legacy", "reference", results(3)))
    made.arms.append(
        failed_arm(
            "tp2pp2",
            "v2",
            "candidate",
            "crash: killed by SIGSEGV before the end of the suite",
            ["\x1b[31mERROR\x1b[0m worker 3 died", "Fatal Python error: Segmentation fault"],
        )
    )
    made.verdicts.append(
        rep.TopologyVerdict(
            topology="tp2pp2",
            reference="legacy",
            candidate="v2",
            verdict="fail",
            requests=0,
            different=0,
        )
    )
    return made.report()


def accepting() -> rep.Report:
    """A candidate that passes, with logprobs within a tolerance and a token that is known."""
    other = results(1.5)
    other[5].outputs[0].token_ids[11] ^= 1
    for result in other[9:11]:
        entries = (result.outputs[0].logprobs or [])[3]
        assert entries is not None
        entries[0] = (entries[0][0], float(entries[0][1]) - 1e-6, entries[0][2])
    made = Builder().topology("tp2", results(1), {"v2": other, "mp": results(2)}, results(3))
    for one in made.comparisons:
        if one.result == "different" and one.workload == "seeded":
            one.result, one.known = "known", "it rounds otherwise (vllm#1)"
        elif one.result == "different":
            one.result = "within-tolerance"
    counts = {"verdict": "pass", "different": 0, "known": 1, "within_tolerance": 2}
    made.verdicts[0] = made.verdicts[0].model_copy(update=counts)
    return made.report()


def leaving_out(report: rep.Report, *not_run: cap.NotRun) -> rep.Report:
    """The report of a run that left workloads out, beside those of *report*."""
    names = [one.workload for one in not_run]
    verdicts = [v.model_copy(update={"not_run": names}) for v in report.topologies]
    return report.model_copy(update={"not_run": list(not_run), "topologies": verdicts})


def hostile(text: str) -> rep.Report:
    """A report with *text* wherever a text of a model or a user can be."""
    right, wrong = results(1), results(2)
    for result in (*right, *wrong):
        if result.workload == "greedy":
            result.workload = text
            result.request = f"{result.request} {text}"
    wrong[0].outputs[0].text = text
    wrong[4].outputs[0].stop_reason = text
    again = [result.model_copy(deep=True) for result in right]
    again[1].outputs[0].finish_reason = text
    made = Builder().topology("tp2", right, {text: wrong}, again)
    made.arms.append(failed_arm("pp2", text, "candidate", f"{text}: {text}", [text, text]))
    made.arms[0].executor = f"{text}:{text}"
    made.arms[0].provider = made.arms[0].vllm = made.arms[0].torch = text
    made.arms[0].repairs = [text]
    made.arms[0].workers[0].actor_class = made.arms[0].workers[0].node_ip = text
    made.arms[0].workers[0].devices = {"GPU": [text]}
    workloads = [rep.SuiteWorkload(name=text, about=text, requests=4)]
    known = [rep.KnownDifference(backend=text, what=text, source=text, effect=text)]
    report = made.report(
        **dict.fromkeys(("vllm", "suite", "model", "engine_core", "started_at"), text),
        workloads=workloads,
        known_differences=known,
        left_behind=[text],
    )
    left_out = cap.NotRun(
        workload=f"{text} left out", requests=1, platform=text, why=text, source=text
    )
    return leaving_out(report, left_out)
