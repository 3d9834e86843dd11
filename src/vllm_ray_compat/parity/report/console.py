"""The table of a parity run that a person reads."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_ray_compat.parity.backends import short_name
from vllm_ray_compat.parity.compare import differences
from vllm_ray_compat.parity.noise import describe_accepted
from vllm_ray_compat.parity.report.data import Arm, Report
from vllm_ray_compat.parity.report.findings import consequences, depth, of_floor, sentences
from vllm_ray_compat.parity.report.text import at, describe, plain_log, visible

_STYLE = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
_MOST_DIFFERENCES = 12


def print_report(report: Report, console: Console) -> None:
    """Print *report*: the arms, what differs, why an arm failed, and the verdict last."""
    console.print(_arms_table(report))

    def tell(text: str, style: str = "") -> None:
        console.print(Text(visible(text), style=style), soft_wrap=True)

    for arm in report.failures:
        tell(f"Arm {arm.label} failed: {arm.failure}", "red")
        if arm.log_tail:
            tell(f"  The last lines of its log, {arm.log}:", "red")
        for line in plain_log(arm.log_tail).splitlines():
            console.print(Text(f"  | {line}"), soft_wrap=True)
    found = differences([*report.placement, *report.comparisons])
    following = consequences(report.comparisons)
    for comparison in found[:_MOST_DIFFERENCES]:
        tell(f"  different: {describe(comparison)}{depth(comparison)}")
        request = (
            *(comparison.topology, comparison.candidate),
            *(comparison.workload, comparison.request),
        )
        if fields := following.pop(request, None):
            tell(f"    from there on, as a consequence: {', '.join(fields)}")
    if len(found) > _MOST_DIFFERENCES:
        tell(f"  … and {len(found) - _MOST_DIFFERENCES} more, in report.json")
    for floor in report.noise_floor:
        tell(f"Noise floor {floor.topology}: {floor.reference} against itself, {of_floor(floor)}")
    for known in report.known_differences:
        # The sources of what holds in every run are left to the other forms.
        told = known.seen is not None or known.workload is not None
        source = f" ({known.source})" if told else ""
        tell(f"Known difference: {known.backend} {known.what}; {known.effect}{source}.")
    for one in report.not_run:
        if one.backend is None:  # else it is a known difference
            tell(f"Not run: workload {one.workload} ({one.requests} requests): {one.told}.")
    for sentence in sentences(report):
        tell(sentence)
    if report.injected_fault is not None:
        fault = report.injected_fault
        tell(
            f"Fault injected on purpose: {fault.kind} in workload {fault.workload}, request "
            f"{fault.request}{at(fault.position)}; the verdict has to be "
            f"{'PASS, as it is harmless' if fault.harmless else 'FAIL'}."
        )
    if report.left_behind:
        tell(f"Left behind: {', '.join(report.left_behind)}", "yellow")
    console.print(
        Text(f"Verdict: {report.verdict.upper()}", style=_STYLE[report.verdict]),
        Text(visible(f"vLLM {report.vllm}, suite {report.suite}, {report.took_s:.0f} s")),
        soft_wrap=True,
    )


def _arms_table(report: Report) -> Table:
    table = Table(title="Parity", title_justify="left")
    for name in ("topology", "arm", "executor that ran", "start", "suite", "against reference"):
        table.add_column(name, justify="right" if name in ("start", "suite") else "left")
    for arm in report.arms:
        timings = arm.timings
        table.add_row(
            Text(visible(arm.topology)),
            Text(visible(_name(arm))),
            Text(visible((arm.executor or "-").rpartition(":")[2])),
            "-" if timings.engine_start_s is None else f"{timings.engine_start_s:.0f} s",
            f"{sum(timings.workloads_s.values()):.1f} s" if timings.workloads_s else "-",
            _against(report, arm),
        )
    return table


def _name(arm: Arm) -> str:
    name = short_name(arm.name)
    if arm.profile != "default":
        name += f", {arm.profile}"
    return f"{name} (again)" if arm.role == "reference-again" else name


def _against(report: Report, arm: Arm) -> Text:
    if arm.failure is not None:
        return Text(visible(arm.failure.partition(":")[0]), style="bold red")
    if arm.role == "reference":
        return Text("(reference)", style="dim")
    if arm.role == "reference-again":
        for floor in report.noise_floor:
            if floor.topology == arm.topology:
                noisy = len({(c.workload, c.request) for c in floor.differences})
                within = f"{floor.within_tolerance} within tolerance"
                equal = within if floor.within_tolerance else "identical"
                return Text(f"{noisy} of {floor.requests} differ" if noisy else equal)
        return Text("-")
    for verdict in report.topologies:
        if (verdict.topology, verdict.candidate) == (arm.topology, arm.name):
            if not verdict.requests:
                return Text("not compared", style=_STYLE[verdict.verdict])
            text = describe_accepted(verdict.requests, verdict.known, verdict.within_tolerance)
            text = text or f"identical ({verdict.requests} requests)"
            if any(
                c.result == "different" and (c.topology, c.candidate) == (arm.topology, arm.name)
                for c in report.placement
            ):
                text = "ranks placed otherwise"
            if verdict.different:
                text = f"{verdict.different} of {verdict.requests} differ"
            return Text(text, style=_STYLE[verdict.verdict])
    return Text("-")
