"""What an arm of a parity run gets of its caller's environment."""

from __future__ import annotations

from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity.environment import arm_environment, base_environment


def test_which_executor_runs_is_for_the_run_to_say() -> None:
    callers = {FLAG_NAME: "0", "RAYCOMPAT_PHASE": "3", "RAYCOMPAT_RESTORE_LEGACY": "1", "A": "b"}
    base = base_environment(callers, cpu=False)
    assert base["A"] == "b"
    assert not [name for name in base if name.startswith("RAYCOMPAT_") or name == FLAG_NAME]


def test_what_is_repaired_is_for_the_caller_to_say() -> None:
    """The plan expects the class that the caller's setting makes; so must the arm."""
    base = base_environment({"RAYCOMPAT_REPAIRS": "none"}, cpu=False)
    for backend in ("legacy", "v2"):
        environ = arm_environment(base, backend, engine_core="inproc", ray={}, restore_legacy=False)
        assert environ["RAYCOMPAT_REPAIRS"] == "none"


def test_workers_of_all_arms_have_the_same_priority() -> None:
    """Ray's run at nice 15 unless told otherwise, those of ``mp`` at the caller's."""
    assert base_environment({}, cpu=True)["RAY_worker_niceness"] == "0"
    callers = {"RAY_worker_niceness": "15"}
    assert base_environment(callers, cpu=True)["RAY_worker_niceness"] == "15"


def test_the_model_runner_is_pinned_unless_the_caller_names_one() -> None:
    assert base_environment({}, cpu=False)["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    callers = {"VLLM_USE_V2_MODEL_RUNNER": "1", "PYTHONHASHSEED": "7"}
    base = base_environment(callers, cpu=False)
    assert base["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert base["PYTHONHASHSEED"] == "0", "nobody's but the run's"


def test_the_bundles_of_an_arm_are_for_the_run_to_say() -> None:
    base = base_environment({"VLLM_RAY_BUNDLE_INDICES": "5,6"}, cpu=False)
    for given, expected in ((None, None), ("1,0", "1,0")):
        environ = arm_environment(
            base, "v2", engine_core="inproc", ray={}, restore_legacy=False, bundle_indices=given
        )
        assert environ.get("VLLM_RAY_BUNDLE_INDICES") == expected
