"""Run the checks, and say of each what it found or why it was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vllm_ray_compat.doctor.checks import Check, Need
from vllm_ray_compat.doctor.context import Context, Options
from vllm_ray_compat.doctor.findings import Checked, Examination, Level, count
from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_ENVIRONMENT, EXIT_HOLDS


def examine(options: Options, environ: Mapping[str, str], checks: Sequence[Check]) -> Examination:
    """Run *checks* in *environ*."""
    needs = {need for check in checks for need in check.needs}
    context = Context(options, environ, needs)
    return conclude(context, needs, [_run(check, context) for check in checks])


def _run(check: Check, context: Context) -> Checked:
    # In the order of Need: a cluster that cannot be looked at is said once, in few words.
    reasons = (context.missing(need) for need in Need if need in check.needs)
    left_out = next((reason for reason in reasons if reason), None)
    findings = () if left_out else tuple(check.run(context))
    return Checked(
        name=check.name,
        group=check.group,
        asks=check.asks,
        left_out=left_out,
        findings=findings,
    )


def conclude(context: Context, needs: Iterable[Need], checked: Sequence[Checked]) -> Examination:
    """Put the examination together, with its exit code."""
    counts = count(tuple(checked))
    looked = bool({Need.CLUSTER, Need.PROBES} & set(needs)) and context.ray_version is not None
    # Asked for by name and not there: what was found otherwise does not answer the question.
    missed = context.options.ray_address is not None and (
        not looked or context.cluster.view is None
    )
    if missed or all(one.left_out for one in checked):
        code = EXIT_ENVIRONMENT
    else:
        code = EXIT_DIFFERENCE if counts[Level.PROBLEM] else EXIT_HOLDS
    return Examination(
        vllm=None if context.undecided else context.decision.vllm,
        backend=context.backend.value if context.backend else None,
        ray_address=context.cluster.address if looked else None,
        counts=counts,
        checks=tuple(checked),
        exit_code=code,
    )
