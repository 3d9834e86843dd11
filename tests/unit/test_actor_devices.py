"""An engine inside a Ray actor that holds devices: decided on a made-up Ray.

tests/engine/test_ray_serve.py has the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_plugin import vllm32
from vllm_ray_compat.errors import EXIT_ENVIRONMENT
from vllm_ray_compat.executors import actor_devices
from vllm_ray_compat.executors.environment import address_for_engine_core

__all__ = ["vllm32"]

WORKER, DRIVER = 1, 0


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An actor with two of four devices, the other two taken; change what a test is about."""
    state = SimpleNamespace(
        mode=WORKER, held={"CPU": 1.0, "GPU": 2.0}, free={"CPU": 3.0}, group=None, connected=True
    )
    context = SimpleNamespace(
        worker=SimpleNamespace(mode=WORKER),
        get_assigned_resources=lambda: state.held,
        gcs_address="192.0.2.1:6379",
    )

    def get_context() -> Any:
        context.worker.mode = state.mode
        return context

    module = SimpleNamespace(
        WORKER_MODE=WORKER,
        is_initialized=lambda: state.connected,
        get_runtime_context=get_context,
        available_resources=lambda: state.free,
        cluster_resources=lambda: {"GPU": 4.0, "NPU": 4.0},
        util=SimpleNamespace(get_current_placement_group=lambda: state.group),
    )
    monkeypatch.setitem(sys.modules, "ray", module)  # type: ignore[arg-type]
    state.platform = SimpleNamespace(ray_device_key="GPU")
    platforms = SimpleNamespace(current_platform=state.platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)  # type: ignore[arg-type]
    return state


def config(tp: int = 2, pp: int = 1, group: Any = None) -> Any:
    return SimpleNamespace(
        placement_group=group,
        world_size=tp * pp,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
    )


def test_refused_with_both_ways_out(ray: SimpleNamespace) -> None:
    with pytest.raises(actor_devices.DevicesHeldByActorError) as caught:
        actor_devices.check(config())
    text = str(caught.value)
    for words in (
        "a Ray actor that holds 2 GPU itself",
        "reserves 2 GPU more, and of the cluster's 4 are free: 0. It would wait for ever.",
        "@serve.deployment(**vllm_ray_compat.serve.placement_options(tensor_parallel_size=2))",
        "ray_actor_options={'num_gpus': 2} with distributed_executor_backend='mp'",
    ):
        assert words in text
    assert caught.value.exit_code == EXIT_ENVIRONMENT


def test_the_call_in_the_message_is_the_right_one(ray: SimpleNamespace) -> None:
    ray.platform.ray_device_key = "NPU"
    ray.held = {"NPU": 1.0}
    with pytest.raises(actor_devices.DevicesHeldByActorError) as caught:
        actor_devices.check(config(2, 2))
    call = "placement_options(tensor_parallel_size=2, pipeline_parallel_size=2, device='NPU')"
    assert call in str(caught.value)
    assert "ray_actor_options={'resources': {'NPU': 4}}" in str(caught.value)


def test_one_device_too_few_is_refused_and_enough_is_a_warning(ray: SimpleNamespace) -> None:
    ray.free = {"GPU": 1.0}
    with pytest.raises(actor_devices.DevicesHeldByActorError):
        actor_devices.check(config())
    ray.free = {"GPU": 2.0}
    warning = actor_devices.check(config())
    assert warning is not None
    assert "the actor's own stay unused" in warning
    assert "placement_options(tensor_parallel_size=2)" in warning


@pytest.mark.parametrize("changed", ["driver", "no devices", "not connected", "no key"])
def test_others_are_left_alone(ray: SimpleNamespace, changed: str) -> None:
    if changed == "driver":
        ray.mode = DRIVER
    elif changed == "no devices":
        ray.held = {"CPU": 1.0}
    elif changed == "not connected":
        ray.connected = False
    elif changed == "no key":
        ray.platform.ray_device_key = ""
    assert actor_devices.check(config()) is None


def group(*devices: float) -> Any:
    specs = [{"CPU": 1.0, "GPU": number} for number in devices]
    return SimpleNamespace(bundle_specs=specs, id=len(devices))


@pytest.mark.parametrize("given", ["current", "in the configuration"])
def test_a_group_is_enough_where_the_actor_holds_none_of_it(
    ray: SimpleNamespace, given: str
) -> None:
    ray.held = {"CPU": 1.0}
    its = group(0, 1, 1)
    ray.group = its if given == "current" else None
    assert actor_devices.check(config(group=None if ray.group else its)) is None


def test_an_actor_that_holds_a_bundle_of_a_worker_is_refused(ray: SimpleNamespace) -> None:
    ray.held = {"GPU": 1.0}
    ray.group = group(1, 1)
    with pytest.raises(actor_devices.DevicesHeldByActorError) as caught:
        actor_devices.check(config())
    text = str(caught.value)
    assert "holds 1 GPU itself. Its placement group has 2 bundles with GPU, and its 2" in text
    assert "placement_options(tensor_parallel_size=2)" in text


def test_a_bundle_to_spare_or_a_fraction_of_a_device_does_no_harm(ray: SimpleNamespace) -> None:
    ray.held, ray.group = {"GPU": 1.0}, group(1, 1, 1)
    assert actor_devices.check(config()) is None
    ray.held, ray.group = {"GPU": 0.001}, group(1, 1)
    assert actor_devices.check(config()) is None, "Serve LLM makes its configuration in such a task"


@pytest.mark.parametrize("current", [None, (1,)])
def test_a_group_elsewhere_is_not_what_the_actor_holds(ray: SimpleNamespace, current: Any) -> None:
    ray.group = group(*current) if current else None
    assert actor_devices.check(config(group=group(1, 1))) is None


def test_a_group_that_is_too_small_is_left_to_vllm(ray: SimpleNamespace) -> None:
    ray.held, ray.group = {"GPU": 0.5}, group(1)
    assert actor_devices.check(config()) is None


def test_without_ray_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert actor_devices.check(None) is None


def test_engine_core_is_told_the_cluster_of_the_actor(
    ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert address_for_engine_core() == {"RAY_ADDRESS": "192.0.2.1:6379"}
    monkeypatch.setenv("RAY_ADDRESS", "198.51.100.1:6379")
    assert address_for_engine_core() == {}
    monkeypatch.delenv("RAY_ADDRESS")
    ray.mode = DRIVER
    assert address_for_engine_core() == {}


RAY = """
ray = types.ModuleType("ray")
ray.is_initialized = lambda: False
sys.modules["ray"] = ray
import logging; logging.basicConfig(stream=sys.stdout, format='%(message)s')
from vllm_ray_compat.executors import actor_devices
plugin.register()
"""


def test_the_plugin_passes_the_refusal_on_and_warns(vllm32: Callable[..., str]) -> None:
    script = RAY + (
        "def refuse(config): raise actor_devices.DevicesHeldByActorError('refused')\n"
        "actor_devices.check = refuse\n"
        "try: ask('ray')\nexcept Exception as error: print(type(error).__name__, error)\n"
        "print(ask('mp'))\n"
        "actor_devices.check = lambda config: 'a warning'\n"
        "print(ask('ray'))\n"
        "from vllm.v1.executor.abstract import Executor\n"
        "def __post_init__(): Executor.get_class(config('ray'))\n"
        "print('in config:'); __post_init__()\n"
    )
    assert vllm32(script) == (
        "DevicesHeldByActorError refused vllm's own a warning RayExecutorV2 in config:"
    )


def test_a_look_that_fails_harms_nothing(vllm32: Callable[..., str]) -> None:
    said = vllm32(RAY + "actor_devices.check = lambda config: 1 / 0; print(ask('ray'))")
    assert said.startswith("vllm_ray_compat could not see which devices the Ray actor around")
    assert said.endswith("RayExecutorV2")


def test_without_ray_the_plugin_does_not_look(vllm32: Callable[..., str]) -> None:
    script = "plugin.register(); print(ask('ray'), 'vllm_ray_compat.executors.actor_devices' in sys.modules)"
    assert vllm32(script) == "RayExecutorV2 False"
