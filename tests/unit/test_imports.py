"""What loads into other people's processes imports nothing of vLLM, Ray or torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CORE = [
    "vllm_ray_compat",
    "vllm_ray_compat.flag",
    "vllm_ray_compat.schedule",
    "vllm_ray_compat.selector",
    "vllm_ray_compat.deprecations",
    "vllm_ray_compat.settings",
    "vllm_ray_compat.vllm_api",
    "vllm_ray_compat.plugin",
    "vllm_ray_compat.platforms",
    "vllm_ray_compat.serve",
    "vllm_ray_compat.executors.actor_devices",
    "vllm_ray_compat.executors.catalog",
    "vllm_ray_compat.executors.environment",
    "vllm_ray_compat.executors.rank_order",
    "vllm_ray_compat.executors.repairs",
    "vllm_ray_compat.parity.matrix",
]
FORBIDDEN = {"vllm", "ray", "torch"}
#: What the core may import beyond the standard library (design, section 4).
ALLOWED = {"packaging", "vllm_ray_compat"}


def _loaded_by(statement: str) -> set[str]:
    script = (
        f"import sys; before = set(sys.modules)\n{statement}\n"
        "print(*sorted({n.partition('.')[0] for n in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", CORE)
def test_core_modules_depend_on_packaging_alone(module: str) -> None:
    loaded = _loaded_by(f"import {module}")
    assert not loaded & FORBIDDEN
    third_party = {n for n in loaded if n not in sys.stdlib_module_names and not n.startswith("_")}
    assert third_party <= ALLOWED


def test_a_decision_is_made_without_importing_vllm() -> None:
    loaded = _loaded_by("import vllm_ray_compat; vllm_ray_compat.select()")
    assert not loaded & FORBIDDEN


def test_the_command_line_is_built_without_importing_vllm() -> None:
    assert not _loaded_by("import vllm_ray_compat.cli.app") & FORBIDDEN


def test_the_doctor_looks_without_importing_vllm() -> None:
    """Ray is imported by the process that looks at the cluster, and by that alone."""
    assert not _loaded_by("import vllm_ray_compat.doctor.examine") & FORBIDDEN
    assert not _loaded_by("import vllm_ray_compat.doctor.registry") & FORBIDDEN


@pytest.mark.parametrize("module", ["runner", "cross", "selftest", "report.files", "arm"])
def test_a_run_is_prepared_without_importing_vllm(module: str) -> None:
    """Engines live in processes of their own; an import of vLLM takes ten seconds, and prints."""
    assert not _loaded_by(f"import vllm_ray_compat.parity.{module}") & FORBIDDEN


def test_loading_the_plugin_imports_nothing_of_vllm() -> None:
    loaded = _loaded_by("from vllm_ray_compat.plugin import register; register()")
    assert not loaded & FORBIDDEN


def test_the_public_api_is_lazy_and_complete() -> None:
    import vllm_ray_compat

    for name in vllm_ray_compat.__all__:
        assert getattr(vllm_ray_compat, name) is not None
        assert name in dir(vllm_ray_compat)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vllm_ray_compat.nothing
