"""What a result says, as tables of texts: for the terminal, and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_ray_compat.bench.conclude import ALPHA, Comparison, Verdict
from vllm_ray_compat.bench.metrics import START, metric, of_what
from vllm_ray_compat.bench.result import ArmResult, Bench


@dataclass(frozen=True)
class Table:
    """A table; the first column holds names, the others values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(bench: Bench) -> list[Table]:
    """Return the tables of a result, topology by topology."""
    found: list[Table] = []
    for topology, comparisons in bench.comparisons.items():
        arms = [arm for arm in bench.arms if arm.topology == topology]
        found += _comparisons(topology, arms, comparisons)
        found += _values(topology, arms)
        found += _starts(topology, arms)
    return found


def headline(bench: Bench) -> list[str]:
    """Return what was run, in sentences."""
    machine = bench.machine
    gpus = f", {len(machine.gpus)} × {machine.gpus[0]}" if machine.gpus else ""
    versions = bench.arms[0].about.versions if bench.arms else {}
    of_all = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    engines = (
        "a new engine for each turn" if bench.engines == "fresh" else "engines kept, side by side"
    )
    passes = len({(turn.topology, turn.in_pass) for turn in bench.turns})
    topologies = len({turn.topology for turn in bench.turns})
    lines = [
        f"{machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB{gpus}, "
        f"{machine.kernel}; {of_all}",
        f"{passes} passes over {topologies} topologies, A B C C B A, {engines}, engine core "
        f"{bench.engine_core}, {bench.took_s / 60:.0f} min",
    ]
    if bench.variables:
        lines.append("with " + " ".join(f"{k}={v}" for k, v in bench.variables.items()))
    if not bench.complete:
        lines.append("It did not end: these are the turns until then.")
    if machine.autogroup and machine.cores < 8:
        lines.append(
            "Linux shares the cores between sessions here (kernel.sched_autogroup_enabled=1), and "
            "the workers of mp are in their driver's, those of Ray in another: on few cores that "
            "is measured, too."
        )
    return lines + bench.remarks


def told(comparison: Comparison) -> str:
    """Return the verdict on a metric, with what is shown where the margin is not."""
    if comparison.verdict is not Verdict.NOT_SHOWN:
        return str(comparison.verdict.value)
    if comparison.shown_within is None:
        return "not shown (too few passes)"
    return f"not shown (less than {100 * comparison.shown_within:.1f} %)"


def interval_text(comparison: Comparison) -> str:
    """Return the interval of the ratio."""
    if comparison.interval is None:
        return "none"
    return "{:.3f} to {:.3f}".format(*comparison.interval)


def _comparisons(
    topology: str, arms: Sequence[ArmResult], comparisons: Sequence[Comparison]
) -> Iterator[Table]:
    reference = next((arm.name for arm in arms if arm.role == "reference"), "")
    for candidate in dict.fromkeys(one.candidate for one in comparisons):
        mine = [one for one in comparisons if one.candidate == candidate]
        yield Table(
            f"{topology}: {candidate} against {reference}, {len(mine[0].ratios)} passes",
            ("metric", reference, candidate, "ratio", "95 % interval", "no overhead"),
            [
                (
                    label(one.metric),
                    _number(one.reference_value),
                    _number(one.candidate_value),
                    f"{one.ratio:.3f}",
                    interval_text(one),
                    told(one) if one.is_claim else "",
                )
                for one in mine
            ],
        )


def _values(topology: str, arms: Sequence[ArmResult]) -> Iterator[Table]:
    """Yield the table in which floors stand beside executors."""
    if not any(arm.role == "floor" for arm in arms):
        return
    keys = [k for arm in arms for k in arm.medians if k.rpartition(".")[2] in _ROUND_TRIP]
    for what in dict.fromkeys(map(of_what, keys)):
        has = [arm for arm in arms if f"{what}.p50_us" in arm.medians]
        fastest = min(arm.medians[f"{what}.p50_us"] for arm in has)
        yield Table(
            f"{topology}: {what}, round trip, µs",
            ("arm", "p50", "p90", "p99", "p99.9", "a second", "p50 / fastest"),
            [
                (
                    arm.name,
                    *(
                        _number(arm.medians[f"{what}.{n}"]) if f"{what}.{n}" in arm.medians else ""
                        for n in _ROUND_TRIP
                    ),
                    f"{arm.medians[f'{what}.p50_us'] / fastest:.1f}",
                )
                for arm in sorted(has, key=lambda arm: arm.medians[f"{what}.p50_us"])
            ],
        )


def _starts(topology: str, arms: Sequence[ArmResult]) -> Iterator[Table]:
    engines = [arm for arm in arms if arm.role != "floor"]
    phases = dict.fromkeys(name for arm in engines for name in arm.about.start_s)
    if phases:
        yield Table(
            f"{topology}: start, s",
            ("arm", *phases, "whole"),
            [
                (
                    arm.name,
                    *(f"{_phase(arm, name):.1f}" for name in phases),
                    f"{sum(_phase(arm, name) for name in phases):.1f}",
                )
                for arm in engines
            ],
        )


def _phase(arm: ArmResult, name: str) -> float:
    """Return the median of a phase; of engines that were started once, that once."""
    return arm.medians.get(f"{START}.{name}", arm.about.start_s.get(name, 0.0))


_ROUND_TRIP = ("p50_us", "p90_us", "p99_us", "p99_9_us", "per_s")


def label(key: str) -> str:
    """Return what a metric is called, and its unit."""
    what = metric(key)
    return f"{of_what(key)}: {what.label}" + (f", {what.unit}" if what.unit else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


#: Told below the tables, once.
EXPLANATION = (
    "Ratio: candidate / reference, median over the passes. No overhead: what two one-sided sign "
    f"tests (each at {100 * ALPHA:g} %) show of a loss or a gain of the margin, {{margin:g}} %: "
    "equivalent (neither is as large), no overhead (no such loss; perhaps a gain), overhead (a "
    "larger loss), or not shown; then in brackets the loss that can be excluded."
)


def explanation(bench: Bench) -> str:
    """Return what the words of the tables mean."""
    return EXPLANATION.format(margin=100 * bench.margin)
