"""What a checked plan says of its arms."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.parity.plan import Options, Plan, PlannedArm
from vllm_ray_compat.parity.workloads import load_suite


def test_an_arm_has_its_time_for_each_engine() -> None:
    """Two engines in one arm take twice as long to start; one engine waits for the other."""
    anything: Any = None
    plan = Plan(
        options=Options(arm_timeout_s=10.0),
        model=anything,
        suite=load_suite("full"),
        topologies=(),
        arms=(),
        models={},
        not_run={},
    )
    times = {
        profile: plan.timeout_s(PlannedArm(anything, anything, "candidate", profile))
        for profile in ("default", "lora", "two-engines")
    }
    assert times == {"default": 10.0, "lora": 10.0, "two-engines": 20.0}
    # A forced arm has a suite of its own.
    smoke = PlannedArm(anything, anything, "candidate-forced", "default", load_suite("smoke"))
    assert plan.timeout_s(smoke) == 10.0
