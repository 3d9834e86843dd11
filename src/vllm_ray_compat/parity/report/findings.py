"""What stands behind a verdict, in sentences: depth of a divergence, tolerances, statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_ray_compat.parity.compare import Comparison
from vllm_ray_compat.parity.engines import EngineDifference
from vllm_ray_compat.parity.past import Forced
from vllm_ray_compat.parity.report.data import NoiseFloor, Report, StepDifference, TopologyVerdict
from vllm_ray_compat.parity.statistics import Statistics

#: Environment variables named in a sentence; report.json has all.
_MOST_NAMES = 12


def depth(comparison: Comparison) -> str:
    """Return how close two different tokens or logprobs were, as the end of a sentence."""
    first = comparison.first_divergence
    if first is None:
        return ""
    told = []
    for whose, other, rank, gap in (
        ("reference", "candidate", first.candidate_rank, first.reference_gap),
        ("candidate", "reference", first.reference_rank, first.candidate_gap),
    ):
        if rank is not None or gap is not None:
            where = "" if rank is None else f" has the {other}'s token at rank {rank}"
            apart = "" if gap is None else f"{',' if where else ''} {_number(gap)} nats behind"
            told.append(f"the {whose}{where}{apart}")
    if first.tie is not None:
        told.append("a tie" if first.tie else "no tie")
    if first.largest_difference is not None:
        told.append(f"largest difference {_number(first.largest_difference)} nats")
    return f" ({'; '.join(told)})" if told else ""


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def consequences(comparisons: Sequence[Comparison]) -> dict[tuple[str, str, str, str], list[str]]:
    """Return the fields that only follow, by topology, candidate, workload and request."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for c in comparisons:
        if c.result == "follows":
            key = (c.topology, c.candidate, c.workload, c.request)
            found.setdefault(key, []).append(c.field)
    return found


def of_floor(floor: NoiseFloor) -> str:
    """Return how often the reference ran, and what its runs differ in."""
    within = floor.within_tolerance
    return (
        f"{floor.runs} runs of {floor.requests} requests, {len(floor.differences)} differences"
        + (f", {within} answers within tolerance." if within else ".")
    )


def sentences(report: Report) -> Iterator[str]:
    """Yield what a person has to know beside the differences themselves."""
    for declared in report.tolerances:
        tolerance = declared.tolerance
        where = "all workloads" if declared.workload is None else f"workload {declared.workload}"
        per_token = " a token" if tolerance.per_token else ""
        yield (
            f"Tolerance of {declared.field} in {where}: {tolerance.absolute:g}{per_token} "
            f"absolute, {tolerance.relative:g} relative, declared by {declared.source}."
        )
    yield from _of_engines(report.engine_differences)
    for c in report.placement:
        if c.result == "noted" and c.first_divergence is not None:
            yield (
                f"{c.topology} {c.reference} vs {c.candidate}, {c.request}: {c.field} "
                f"{c.first_divergence.reference} and {c.first_divergence.candidate} (not judged)."
            )
    names: dict[tuple[str, str, str], list[str]] = {}
    for variable in report.environment_differences:
        key = (variable.topology, variable.reference, variable.candidate)
        names.setdefault(key, []).append(variable.name)
    for (topology, reference, candidate), found in names.items():
        more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
        yield (
            f"{topology} {reference} vs {candidate}: the workers' environments differ in "
            f"{', '.join(found[:_MOST_NAMES])}{more} (not judged)."
        )
    for step in report.steps:
        yield _of_step(step)
    for forced in report.forced:
        yield _of_forced(forced)
    for why in report.not_forced:
        yield f"Past the divergence nothing is known: {why}"
    if report.others_left_out:
        yield f"{report.others_left_out} more differing fields are counted in totals only."
    for verdict in report.topologies:
        yield from _of_verdict(verdict)


def _of_step(step: StepDifference) -> str:
    where = f"{step.topology} {step.candidate}"
    if step.profile != "default":
        where += f" ({step.profile})"
    found = step.divergence
    if found is None:
        return f"{where}: every step went in and came out as the reference's."
    what = "was scheduled otherwise" if found.side == "input" else "came out otherwise"
    return (
        f"{where}: step {found.step}, workload {found.workload}, is the first that {what}: "
        f"requests {', '.join(found.requests)}."
    )


def _of_forced(forced: Forced) -> str:
    told = (
        f"{forced.topology} {forced.candidate}, workload {forced.workload}, request "
        f"{forced.request}, along the reference's tokens: {forced.agreed} of {forced.positions} "
        "are the candidate's own first choice"
    )
    if forced.first_disagreement is not None:
        told += f", the first that is not at position {forced.first_disagreement}"
    if forced.largest_difference is not None:
        told += (
            f"; largest difference of a logprob {_number(forced.largest_difference)} nats, at "
            f"position {forced.largest_at}"
        )
    return f"{told}."


def _of_engines(differences: Sequence[EngineDifference]) -> Iterator[str]:
    pairs: dict[str, list[EngineDifference]] = {}
    for one in differences:
        pair = f"{one.topology} {one.reference} vs {one.candidate}"
        pairs.setdefault(pair, []).append(one)
    for pair, found in pairs.items():
        # Once, of several profiles.
        deciding = list(
            dict.fromkeys(
                f"{d.name} ({d.reference_value or '-'} and {d.candidate_value or '-'})"
                for d in found
                if d.decides_outputs
            )
        )
        others = list(dict.fromkeys(d.name for d in found if not d.decides_outputs))
        if deciding:
            yield f"{pair}: the engines differ in what decides outputs: {', '.join(deciding)}."
        if others:
            yield f"{pair}: the engines differ in {', '.join(others)}."


def _of_verdict(verdict: TopologyVerdict) -> Iterator[str]:
    where = f"{verdict.topology} {verdict.reference} vs {verdict.candidate}"
    if verdict.within_tolerance:
        yield (
            f"{where}: {verdict.within_tolerance} of {verdict.requests} requests are within "
            "tolerance, not equal."
        )
    if verdict.known:
        yield (
            f"{where}: {verdict.known} of {verdict.requests} requests differ, and only as declared."
        )
    if verdict.partial:
        yield (
            f"{where}: an arm did not get to its end; {verdict.not_compared} requests were not "
            "compared, and the verdict is inconclusive at best."
        )
    elif verdict.not_compared:
        yield (
            f"{where}: {verdict.not_compared} requests are of engine profiles that only one side "
            "has a capture of; they were not compared, and the verdict is inconclusive at best."
        )
    if verdict.statistics is not None and verdict.requests:
        yield f"{where}: {power(verdict.statistics)}"


def power(found: Statistics) -> str:
    """Return what a comparison would have shown, as a sentence."""
    sure = f"{1 - found.alpha:.0%}"
    told = f"{found.requests:,} requests, {found.tokens:,} tokens, {found.different} differ"
    if found.smallest_request_fraction is not None:
        told += (
            f"; a fraction of {_percent(found.smallest_request_fraction)} of requests"
            + (
                f" or {_percent(found.smallest_token_fraction)} of tokens"
                if found.smallest_token_fraction is not None
                else ""
            )
            + " that differ would have been seen with a probability of "
            + f"{sure} (alpha {found.alpha:g})"
        )
    if found.noise_runs > 1:
        told += (
            f"; noise floor of {found.noise_runs} runs, {found.noise_requests:,} requests, "
            f"{found.noise_different} differ"
        )
    else:
        told += "; no noise floor was measured"
    if found.p_value is not None:
        told += f"; p = {found.p_value:.2g} that the candidate differs no more than the noise"
    return told + "."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g}%"
