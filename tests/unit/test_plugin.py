"""The plugin's mechanics on a made-up vLLM; tests/engine/test_routing.py has the real one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vllm_ray_compat.names import FLAG_NAME

ABSTRACT = """
class Executor:
    @staticmethod
    def get_class(vllm_config):
        return "vllm's own"
"""
PRELUDE = """
import os, sys, types
from vllm_ray_compat import plugin
def config(backend):
    return types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(distributed_executor_backend=backend))
def ask(backend):
    from vllm.v1.executor.abstract import Executor
    found = Executor.get_class(config(backend))
    return found if isinstance(found, str) else found.__name__
"""


@pytest.fixture
def vllm32(fake_vllm: Callable) -> Callable[..., str]:
    fake = fake_vllm(version="0.32.0")
    fake.write("v1/executor/abstract.py", ABSTRACT)
    fake.write("v1/executor/ray_executor.py", "class RayDistributedExecutor: pass")
    fake.write("v1/executor/ray_executor_v2.py", "class RayExecutorV2: pass")
    fake.write("envs.py", "environment_variables = {}")

    def run(script: str, **environ: str) -> str:
        return str(fake.run(PRELUDE + script, **environ)).replace("\n", " ")

    run.fake = fake  # type: ignore[attr-defined]
    return run


def test_only_the_literal_ray_is_routed(vllm32: Callable) -> None:
    script = "plugin.register(); print(ask('ray'), '|', ask('mp'), '|', ask('uni'), '|', ask(int), '|', ask('a.b.C'))"
    own = "vllm's own"
    assert vllm32(script) == f"RayExecutorV2 | {own} | {own} | {own} | {own}"


def test_patching_after_the_module_was_imported(vllm32: Callable) -> None:
    script = "import vllm.v1.executor.abstract; plugin.register(); print(ask('ray'))"
    assert vllm32(script) == "RayExecutorV2"


def test_the_import_hook_leaves_the_module_as_python_made_it(vllm32: Callable) -> None:
    script = (
        "plugin.register(); n = len(sys.meta_path); import vllm.v1.executor.abstract as m;"
        "print(type(m.__loader__).__name__, m.__spec__.loader is m.__loader__, n - len(sys.meta_path))"
    )
    assert vllm32(script) == "SourceFileLoader True 1"


def test_idempotent(vllm32: Callable) -> None:
    script = (
        "plugin.register(); ask('ray'); from vllm.v1.executor.abstract import Executor;"
        "f = Executor.get_class; plugin.register(); plugin.install(); print(Executor.get_class is f, ask('ray'))"
    )
    assert vllm32(script) == "True RayExecutorV2"


@pytest.mark.parametrize("early", ["", "import vllm.v1.executor.abstract;"])
def test_uninstall_takes_everything_back(vllm32: Callable, early: str) -> None:
    script = (
        f"{early}os.environ['{FLAG_NAME}'] = ' 1 '; import vllm.envs; n = len(sys.meta_path);"
        f"plugin.install(); assert os.environ['{FLAG_NAME}'] == '1';"
        f"plugin.uninstall(); plugin.uninstall(); print(ask('ray'), repr(os.environ['{FLAG_NAME}']),"
        "len(sys.meta_path) - n, len(vllm.envs.environment_variables))"
    )
    assert vllm32(script) == "vllm's own ' 1 ' 0 0"


def test_install_after_uninstall(vllm32: Callable) -> None:
    script = "plugin.install(); ask('ray'); plugin.uninstall(); plugin.install(); print(ask('ray'))"
    assert vllm32(script) == "RayExecutorV2"


def test_disabled(vllm32: Callable) -> None:
    script = "n = len(sys.meta_path); plugin.register(); print(ask('ray'), len(sys.meta_path) - n)"
    assert vllm32(script, RAYCOMPAT_DISABLE="1") == "vllm's own 0"


def test_an_invalid_flag_is_set_aside_and_restored(vllm32: Callable) -> None:
    script = (
        f"plugin.register(); print(os.environ.get('{FLAG_NAME}'), ask('mp'));"
        "\ntry: ask('ray')\nexcept Exception as e: print(type(e).__name__, \"'true'\" in str(e))\n"
        f"plugin.uninstall(); print(os.environ['{FLAG_NAME}'])"
    )
    assert vllm32(script, **{FLAG_NAME: "true"}) == "None vllm's own InvalidFlagError True true"


def test_a_child_of_a_process_with_an_invalid_flag_refuses_too(vllm32: Callable) -> None:
    script = (
        "plugin.register(); import subprocess;"
        "code = 'from vllm_ray_compat.selector import select; select()';"
        "r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True);"
        "print(r.returncode, 'InvalidFlagError' in r.stderr)"
    )
    assert vllm32(script, **{FLAG_NAME: "yes"}) == "1 True"


def test_a_failing_plugin_does_not_take_vllm_down(vllm32: Callable) -> None:
    script = "plugin._normalise_flag = lambda: 1 / 0; plugin.register(); plugin.register(); print(ask('ray'))"
    assert vllm32(script) == "vllm's own"


def test_failing_routing_falls_back_to_vllms_own_and_says_so(vllm32: Callable) -> None:
    script = (
        "import logging; logging.basicConfig(stream=sys.stdout, format='%(message)s');"
        "from vllm_ray_compat import selector; selector.select = lambda: 1 / 0;"
        "plugin.register(); print(ask('ray'))"
    )
    printed = vllm32(script)
    assert "vLLM chooses on its own" in printed
    assert "ZeroDivisionError" in printed
    assert printed.endswith("vllm's own")


def test_a_patch_that_fails_leaves_vllm_as_it_was(vllm32: Callable) -> None:
    vllm32.fake.write("v1/executor/abstract.py", "class Other: pass")  # type: ignore[attr-defined]
    script = (
        "import logging; logging.basicConfig(stream=sys.stdout, format='%(message)s');"
        "plugin.register(); import vllm.v1.executor.abstract as m; print(m.Other.__name__)"
    )
    printed = vllm32(script)
    assert "could not patch" in printed
    assert printed.endswith("Other")


def test_the_warning_is_for_the_driver_and_not_for_a_worker(vllm32: Callable) -> None:
    vllm32.fake.write(  # type: ignore[attr-defined]
        "v1/worker/worker_base.py", "def init_worker(register):\n    register()\n"
    )
    script = (
        "import warnings; warnings.simplefilter('error');"
        "{call};"
        "\ntry: print(ask('ray'))\nexcept Warning as w: print(type(w).__name__)"
    )
    driver = vllm32(script.replace("{call}", "plugin.register()"), **{FLAG_NAME: "0"})
    worker = vllm32(
        script.replace(
            "{call}", "from vllm.v1.worker.worker_base import init_worker as i; i(plugin.register)"
        ),
        **{FLAG_NAME: "0"},
    )
    assert driver == "LegacyExecutorRemovedInVllm033Warning"
    assert worker == "RayDistributedExecutor"


def test_strict_does_not_start(vllm32: Callable) -> None:
    script = "plugin.register()\ntry: ask('ray')\nexcept Exception as e: print(type(e).__name__)"
    assert vllm32(script, RAYCOMPAT_STRICT="1", **{FLAG_NAME: "0"}) == "StrictModeError"


def test_settings_reach_the_workers_of_the_legacy_executor(vllm32: Callable) -> None:
    extra = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
    script = f"plugin.register(); ask('ray'); ask('ray'); print(os.environ.get('{extra}'))"
    assert vllm32(script) == "None"
    assert vllm32(script, RAYCOMPAT_STRICT="0") == "RAYCOMPAT_"
    assert vllm32(script, RAYCOMPAT_STRICT="0", **{extra: "ACME_, X_"}) == "ACME_,X_,RAYCOMPAT_"


def test_an_executor_that_is_not_there_is_an_error_that_says_what_to_do(
    fake_vllm: Callable,
) -> None:
    fake = fake_vllm("v1/executor/ray_executor.py", version="0.19.1")
    fake.write("v1/executor/abstract.py", ABSTRACT)
    script = (
        "from vllm_ray_compat import schedule\n"
        "schedule.COMPAT_EXECUTORS[schedule.Backend.V2] = 'vllm_ray_compat.executors.none:X'\n"
        "plugin.register()\ntry: ask('ray')\nexcept Exception as e: print(type(e).__name__, e)"
    )
    printed = fake.run(PRELUDE + script, **{FLAG_NAME: "1"})
    assert printed.startswith("ExecutorMissingError vLLM 0.19.1 does not ship the v2 Ray executor")
    assert f"Unset {FLAG_NAME}" in printed


OWN = "vllm's own"


@pytest.mark.parametrize("version", ["0.1.dev1+gabc123", "dev", "0.24.0-acme.3", None])
def test_a_vllm_that_is_no_known_release_is_not_taken_down(
    fake_vllm: Callable, version: str | None
) -> None:
    """It starts without this package, so it starts with it: judged by what it ships."""
    fake = fake_vllm("v1/executor/ray_executor.py", version=version)
    fake.write("v1/executor/ray_executor.py", "class RayDistributedExecutor: pass")
    fake.write("v1/executor/ray_executor_v2.py", "class RayExecutorV2: pass")
    fake.write("v1/executor/abstract.py", ABSTRACT)
    assert fake.run(PRELUDE + "plugin.register(); print(ask('ray'))") == "RayExecutorV2"
    off = fake.run(PRELUDE + "plugin.register(); print(ask('ray'))", **{FLAG_NAME: "0"})
    assert off.endswith("RayDistributedExecutor")


def test_a_logging_setup_that_raises_does_not_take_vllm_down(vllm32: Callable) -> None:
    script = (
        "import logging\nclass F(logging.Filter):\n"
        "    def filter(self, record): raise RuntimeError('filter')\n"
        "logging.getLogger('vllm.plugins.vllm_ray_compat').addFilter(F())\n"
        "logging.getLogger('vllm.plugins.vllm_ray_compat').setLevel(10)\n"
        "plugin.register(); print(ask('ray'))"
    )
    assert vllm32(script, RAYCOMPAT_PHASE="1") == "RayDistributedExecutor"


def test_an_executor_that_does_not_import_is_never_replaced_by_the_other(vllm32: Callable) -> None:
    vllm32.fake.write("v1/executor/ray_executor.py", "import no_such_module")  # type: ignore[attr-defined]
    script = "plugin.register()\ntry: print(ask('ray'))\nexcept ImportError as e: print('ImportError', e.name)"
    assert vllm32(script, RAYCOMPAT_PHASE="1") == "ImportError no_such_module"


def test_a_patch_that_fails_gives_the_flag_back(vllm32: Callable) -> None:
    vllm32.fake.write("v1/executor/abstract.py", "class Other: pass")  # type: ignore[attr-defined]
    script = (
        f"plugin.register(); import vllm.v1.executor.abstract; print(os.environ.get('{FLAG_NAME}'))"
    )
    assert vllm32(script, **{FLAG_NAME: "off"}) == "off"


def test_an_old_finder_does_not_break_the_hook(vllm32: Callable) -> None:
    script = (
        "class Old:\n    def find_module(self, name, path=None): return None\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "plugin.register(); sys.meta_path.insert(1, Old()); print(ask('ray'))"
    )
    assert vllm32(script) == "RayExecutorV2"


def test_a_reloaded_module_is_patched_again(vllm32: Callable) -> None:
    script = (
        "plugin.install(); ask('ray'); import importlib, vllm.v1.executor.abstract as m;"
        "importlib.reload(m); plugin.install(); print(ask('ray')); plugin.uninstall(); print(ask('ray'))"
    )
    assert vllm32(script) == f"RayExecutorV2 {OWN}"


WRAP = (
    "from vllm.v1.executor.abstract import Executor; inner = Executor.get_class\n"
    "Executor.get_class = staticmethod(lambda c: inner(c))\n"
)


def test_another_plugins_wrapper_stays_and_ours_goes_quiet(vllm32: Callable) -> None:
    script = (
        f"plugin.install(); ask('ray')\n{WRAP}"
        "w = Executor.get_class; plugin.uninstall(); print(Executor.get_class is w, ask('ray'))"
    )
    assert vllm32(script) == f"True {OWN}"


def test_uninstall_restores_what_is_still_ours_and_only_that(vllm32: Callable) -> None:
    extra = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
    script = (
        f"plugin.register(); ask('ray'); os.environ['{FLAG_NAME}'] = '0'; plugin.uninstall();"
        f"print(os.environ['{FLAG_NAME}'], os.environ.get('{extra}'))"
    )
    assert vllm32(script, RAYCOMPAT_STRICT="0", **{FLAG_NAME: " 1"}) == "0 None"


def test_the_flag_becomes_known_although_we_were_installed_before_vllm(vllm32: Callable) -> None:
    script = (
        "plugin.install(); import vllm.envs; plugin.register();"
        f"print('{FLAG_NAME}' in vllm.envs.environment_variables)"
    )
    assert vllm32(script, **{FLAG_NAME: "1"}) == "True"


def test_a_warning_made_an_error_is_raised_again(vllm32: Callable) -> None:
    script = (
        "import warnings; warnings.simplefilter('error'); plugin.register()\n"
        "for _ in range(2):\n"
        "    try: print(ask('ray'))\n    except Warning as w: print(type(w).__name__)\n"
    )
    name = "LegacyExecutorRemovedInVllm033Warning"
    assert vllm32(script, **{FLAG_NAME: "0"}) == f"{name} {name}"
