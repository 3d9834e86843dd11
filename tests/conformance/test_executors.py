"""What every executor does: vLLM's ``mp``, V2 and legacy, and this package's, in real engines.

What vLLM's own are known to lack is in ``known_differences.py``, and nowhere else. Which executors
there are depends on the installed release (``executors.py``); what happens to their engines is in
``executor_cases.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import EXECUTORS, ON_RAY, Found
from .executors import TOPOLOGIES

#: Seconds after which something counts as "never": the test is of that it happens, not of how
#: fast. What was measured is printed; the design's budgets are 2 s idle, 1 s busy, 1 s shutdown.
NEVER_S = 20.0


def each(fixture: str, *cases: str) -> pytest.MarkDecorator:
    """Give a test each executor of *fixture* with each of *cases* that it runs (default: all)."""
    executors = ON_RAY if fixture == "on_ray" else EXECUTORS
    return pytest.mark.parametrize(
        (fixture, "case"),
        [
            pytest.param(executor, case, id=f"{executor}-{case}")
            for executor in executors
            for case in executor.topologies
            if not cases or case in cases
        ],
        indirect=[fixture],
    )


def ranks(found: dict[str, Any], what: str) -> list[Any]:
    return [worker[what] for worker in found["workers"]]


# -- init --------------------------------------------------------------------------------------


@each("found")
def test_it_is_the_executor_asked_for(found: Found, case: str) -> None:
    classes = found[case]["executor"]
    assert found.executor.path in classes
    if found.executor.is_ours:
        assert classes[0] == found.executor.path


@each("found")
def test_ranks_are_in_order(found: Found, case: str) -> None:
    tp, pp = TOPOLOGIES[case]
    assert ranks(found[case], "rank") == list(range(tp * pp))
    assert ranks(found[case], "local_rank") == list(range(tp * pp)), "there is one node"
    assert ranks(found[case], "tp_rank") == [rank % tp for rank in range(tp * pp)]
    assert ranks(found[case], "pp_rank") == [rank // tp for rank in range(tp * pp)]
    assert len(set(ranks(found[case], "pid"))) == tp * pp


@each("found")
def test_the_first_rank_of_a_stage_drives_it(found: Found, case: str) -> None:
    tp, pp = TOPOLOGIES[case]
    assert ranks(found[case], "is_driver") == [rank % tp == 0 for rank in range(tp * pp)]


@each("found", "tp2", "pp2")
def test_it_generates(found: Found, case: str) -> None:
    assert found[case]["tokens"] == 8


@each("found")
def test_properties(found: Found, case: str) -> None:
    tp, pp = TOPOLOGIES[case]
    properties = found[case]["properties"]
    assert properties["uses_ray"] is found.executor.uses_ray
    assert properties["supports_pp"] is True
    assert properties["world_size"] == tp * pp
    # Asked by the backend's name before vLLM 0.19.
    assert properties["async_scheduling"] in (None, found.executor.backend != "legacy")


def test_restart_in_the_same_process(found: Found) -> None:
    assert found["tp2"]["process"] == found["pp2"]["process"]
    assert found["pp2"]["tokens"] == 8


# -- collective_rpc ----------------------------------------------------------------------------


def test_a_method_by_name(found: Found) -> None:
    assert found["tp2"]["by_name"] == [None, None]


def test_a_callable(found: Found) -> None:
    assert found["tp2"]["callable"] == ["called", "called"]


def test_arguments(found: Found) -> None:
    assert found["tp2"]["arguments"] == [3, 3]


def test_a_future(found: Found) -> None:
    assert found["tp2"]["future"] == [4, 4]


def test_futures_out_of_order(found: Found) -> None:
    assert found["tp2"]["futures"] == [[2, 2], [4, 4]]


def test_the_result_of_one_rank(found: Found) -> None:
    assert found["tp2"]["one_rank"] == 1


def test_an_error(found: Found) -> None:
    error = found["tp2"]["error"]
    assert "raised on purpose" in error
    if found.executor.backend == "legacy":  # the message queue carries texts only
        assert "ValueError" in error


def test_an_unknown_method(found: Found) -> None:
    assert "no_such_method" in found["tp2"]["unknown_method"]


def test_an_error_in_a_future(found: Found) -> None:
    assert "raised on purpose" in found["tp2"]["future_error"]


def test_the_call_after_an_error(found: Found) -> None:
    assert found["tp2"]["after_error"] == [4, 4]


def test_a_timeout(found: Found) -> None:
    assert "TimeoutError" in found["tp2"]["timeout"]
    assert 0.4 < found["tp2"]["timeout_s"] < NEVER_S


def test_the_call_after_a_timeout(found: Found) -> None:
    assert found["tp2"]["after_timeout"] == [5, 5]


def test_it_goes_on_after_errors(found: Found) -> None:
    assert found["tp2"]["tokens_again"] == 8


def test_health(found: Found) -> None:
    assert found["tp2"]["health"] == ""


# -- placement ---------------------------------------------------------------------------------


@each("on_ray")
def test_each_rank_has_a_device(on_ray: Found, case: str) -> None:
    tp, pp = TOPOLOGIES[case]
    devices = [device for of_rank in ranks(on_ray[case], "devices") for device in of_rank]
    assert len(devices) == len(set(devices)) == tp * pp


@each("on_ray")
def test_rank_0_is_on_the_drivers_node(on_ray: Found, case: str) -> None:
    assert ranks(on_ray[case], "node")[0] == on_ray[case]["driver_node"]


def test_it_makes_a_group(on_ray: Found) -> None:
    assert on_ray["tp2"]["group_used"] is None
    assert on_ray["tp2"]["made_group"] is True


def test_it_uses_the_group_it_is_given(on_ray: Found) -> None:
    assert on_ray["pp2"]["group_used"] == 0
    assert on_ray["pp2"]["given"] == ["CREATED"], "who made it removes it"


def test_it_inherits_the_callers_group(on_ray: Found) -> None:
    assert on_ray["tp1"]["inherited"] is True
    assert on_ray["tp1"]["given"] == ["CREATED"], "who made it removes it"


def test_bundle_indices_are_the_order_of_ranks(on_ray: Found) -> None:
    of_bundle = on_ray["pp2"]["bundle_devices"]
    assert ranks(on_ray["pp2"], "devices") == [[of_bundle[3]], [of_bundle[1]]]


def test_a_group_larger_than_needed(on_ray: Found) -> None:
    assert not on_ray["tp1"]["hangs"]


# -- a worker that dies ------------------------------------------------------------------------


def test_a_dead_worker_is_noticed(found: Found) -> None:
    assert found["pp2"]["callback_s"] is not None
    assert found["pp2"]["callback_s"] < NEVER_S
    assert found["pp2"]["callbacks"] == 1


def test_a_late_callback_is_called(found: Found) -> None:
    assert found["pp2"]["late_callback_error"] == ""
    assert found["pp2"]["late_callbacks"] == 1


def test_health_after_a_death(found: Found) -> None:
    assert found["pp2"]["health"]


def test_calls_after_a_death_fail(found: Found) -> None:
    assert found["pp2"]["next"]


# -- the end -----------------------------------------------------------------------------------


@each("found")
def test_shutdown_ends_the_workers(found: Found, case: str) -> None:
    assert isinstance(found[case]["shutdown_s"], float), found[case]["shutdown_s"]
    assert found[case]["shutdown_s"] < NEVER_S
    assert found[case]["alive"] == []


def test_shutdown_twice(found: Found) -> None:
    assert found["tp2"]["again"] == ""
    assert found["tp2"]["again_s"] < found["tp2"]["shutdown_s"] + 1, "nothing is left to do"


def test_a_shutdown_is_no_failure(found: Found) -> None:
    assert found["tp2"]["callback_after_shutdown"] is None


def test_a_call_after_shutdown_fails(found: Found) -> None:
    assert found["tp2"]["call_after_shutdown"]


@each("on_ray", "tp2", "tp2pp2")
def test_the_group_it_made_is_removed(on_ray: Found, case: str) -> None:
    assert on_ray[case]["groups"] == []
    assert on_ray[case]["devices_held"] == 0


@each("found")
def test_shared_memory_is_freed(found: Found, case: str) -> None:
    assert found[case]["segments"] == []


# -- only of this package's own: vLLM's start-up has no deadline and cleans up nothing -----------


def assert_nothing_left(found: dict[str, Any]) -> None:
    assert found["groups"] == []
    assert found["devices_held"] == 0
    assert found["alive"] == []
    assert found["segments"] == []


def test_a_worker_that_dies_in_a_request(own: Found) -> None:
    found = own["killed_busy"]
    assert found["callback_s"] is not None
    assert found["callback_s"] < NEVER_S
    assert found["error"], "the caller gets an error, not an answer"
    assert found["error_s"] < NEVER_S
    assert_nothing_left(found)


def test_a_model_that_does_not_load(own: Found) -> None:
    assert "Loading the model" in own["bad_weights"]["error"]
    assert_nothing_left(own["bad_weights"])


def test_a_worker_that_dies_at_the_start(own: Found) -> None:
    assert "rank 1" in own["dies_at_start"]["error"]
    assert_nothing_left(own["dies_at_start"])
