"""How vLLM's executors are told their bundles, without vLLM: its part is played here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from vllm_ray_compat.executors.repairs import whole_tp_groups
from vllm_ray_compat.executors.repairs.placing import (
    backend_of,
    listed_bundles,
    once_there_is_a_group,
)
from vllm_ray_compat.executors.repairs.repair import RepairMismatchError
from vllm_ray_compat.executors.repairs.replacing import StandIn, calls_through
from vllm_ray_compat.schedule import Backend


@pytest.mark.parametrize(
    ("module", "backend"),
    [
        ("vllm.v1.executor.ray_executor", Backend.LEGACY),
        ("vllm.v1.executor.ray_executor_v2", Backend.V2),
    ],
)
def test_whose_executor_it_is(module: str, backend: Backend) -> None:
    vllms = type("Vllms", (), {"__module__": module})
    assert backend_of(type("Repaired", (whole_tp_groups.REPAIR.executor, vllms), {})()) is backend


def test_what_is_called_once_there_is_a_group() -> None:
    calls: list[str] = []
    module = ModuleType("ray_executor")
    vars(module)["initialize_ray_cluster"] = lambda config: calls.append(f"made for {config}")
    with (
        once_there_is_a_group(module, lambda: calls.append("first")),
        once_there_is_a_group(module, lambda: calls.append("second")),
    ):
        module.initialize_ray_cluster("me")
    module.initialize_ray_cluster("you")
    assert calls == ["made for me", "first", "second", "made for you"]


def test_the_list_as_vllm_reads_it() -> None:
    module = ModuleType("ray_executor")
    with pytest.raises(RepairMismatchError, match="has no envs"):
        listed_bundles(module)
    vars(module)["envs"] = StandIn(None, VLLM_RAY_BUNDLE_INDICES="1,0")
    assert listed_bundles(module) == "1,0"
    vars(module)["envs"] = StandIn(None, VLLM_RAY_BUNDLE_INDICES=None)
    assert listed_bundles(module) == ""


class Legacy:
    """As vLLM's, at the point where it has sorted its workers: worker 2 was made first."""

    def __init__(self) -> None:
        self.workers = ["second", "third", "first"]
        self.called: list[Any] = []

    def collective_rpc(self, method: str, args: Any = ()) -> None:
        self.called.append((method, args, list(self.workers)))


def test_legacys_sorting_is_taken_back() -> None:
    executor = type("Repaired", (whole_tp_groups.REPAIR.executor, Legacy), {})()
    with calls_through(executor, executor._keeping_ranks):
        executor.collective_rpc("adjust_rank", args=({0: 2, 1: 0, 2: 1},))
        executor.collective_rpc("init_device")
    assert "collective_rpc" not in vars(executor)
    assert executor.called == [
        ("adjust_rank", ({0: 0, 1: 1, 2: 2},), ["first", "second", "third"]),
        ("init_device", (), ["first", "second", "third"]),
    ]


def test_hooks_of_a_start_are_a_chain_and_go_in_order() -> None:
    executor = Legacy()
    seen: list[str] = []

    def hook(name: str) -> Any:
        def called(call: Any, method: str, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return call(method, *args, **kwargs)

        return called

    def start() -> None:
        with calls_through(executor, hook("outer")):
            with calls_through(executor, hook("inner")):
                executor.collective_rpc("init_worker")
            executor.collective_rpc("init_device")
            raise KeyError

    with pytest.raises(KeyError):
        start()
    executor.collective_rpc("step")
    assert seen == ["inner", "outer", "outer"]
    assert [method for method, *_ in executor.called] == ["init_worker", "init_device", "step"]
