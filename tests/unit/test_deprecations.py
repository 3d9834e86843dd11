from __future__ import annotations

import logging
import subprocess
import sys
import types
import warnings

import pytest

from vllm_ray_compat import deprecations
from vllm_ray_compat.deprecations import (
    FlagIgnoredSinceVllm033Warning,
    LegacyExecutorRemovedInVllm033Warning,
    issue,
)
from vllm_ray_compat.names import LOGGER_NAME


@pytest.fixture(autouse=True)
def _forget() -> None:
    deprecations.forget()


def _warning() -> LegacyExecutorRemovedInVllm033Warning:
    return LegacyExecutorRemovedInVllm033Warning("the text")


def test_once_a_process_and_at_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        issue([_warning()])
        line = sys._getframe().f_lineno - 1
        issue([_warning()])
    (found,) = seen
    assert (found.filename, found.lineno) == (__file__, line)
    assert found.category is LegacyExecutorRemovedInVllm033Warning


def test_frames_of_vllm_are_skipped() -> None:
    """The user calls vLLM, vLLM calls us: the warning points at the user."""
    vllms = types.ModuleType("vllm.engine.arg_utils")
    exec(
        compile("def start(then):\n    then()\n", "/site-packages/vllm/arg_utils.py", "exec"),
        vllms.__dict__,
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        vllms.start(lambda: None)
        namespace = {"__name__": "vllm.inner", "issue": issue, "w": _warning()}
        exec(
            compile("def inner():\n    issue([w])\n", "/site-packages/vllm/inner.py", "exec"),
            namespace,
        )
        vllms.start(namespace["inner"])
        line = sys._getframe().f_lineno - 1
    assert [(w.filename, w.lineno) for w in seen] == [(__file__, line)]


def test_without_a_users_frame_the_outermost_is_taken() -> None:
    """As in ``vllm serve``, where everything below the console script is vLLM's or asyncio's."""
    code = (
        "import sys, types\n"
        "from vllm_ray_compat import deprecations\n"
        "space = {'__name__': 'vllm.entrypoints.x', 'f': deprecations.users_frame}\n"
        "exec('def inner(): return f()', space)\n"
        "space['__name__'] = 'asyncio.events'\n"
        "exec('def loop(): return inner()', space)\n"
        "print(space['loop']().f_code.co_name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "<module>\n"


@pytest.mark.parametrize("module", deprecations._NOT_THE_USER)
def test_whose_frames_are_skipped(module: str) -> None:
    space: dict[str, object] = {"__name__": f"{module}.inner", "f": deprecations.users_frame}
    exec("def inner():\n    return f()\n", space)
    assert space["inner"]().f_code.co_name == "test_whose_frames_are_skipped"  # type: ignore[operator]


def test_a_warning_made_an_error_is_met_again_and_the_others_are_issued() -> None:
    other = FlagIgnoredSinceVllm033Warning("other")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.simplefilter("error", LegacyExecutorRemovedInVllm033Warning)
        for _ in range(2):
            with pytest.raises(LegacyExecutorRemovedInVllm033Warning):
                issue([_warning(), other])
    assert [w.category for w in seen] == [FlagIgnoredSinceVllm033Warning]


def test_shown_by_default() -> None:
    """DeprecationWarning is hidden by default; the operator of a fleet would never see it."""
    assert not issubclass(LegacyExecutorRemovedInVllm033Warning, DeprecationWarning)
    assert issubclass(LegacyExecutorRemovedInVllm033Warning, FutureWarning)


def test_vllms_logger_only_in_a_vllm_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.warns(LegacyExecutorRemovedInVllm033Warning):
        issue([_warning()])
    assert not caplog.records
    deprecations.forget()
    monkeypatch.setitem(sys.modules, "vllm.logger", types.ModuleType("vllm.logger"))
    with pytest.warns(LegacyExecutorRemovedInVllm033Warning):
        issue([_warning()])
    assert [r.name for r in caplog.records] == [LOGGER_NAME]
    assert "LegacyExecutorRemovedInVllm033Warning: the text" in caplog.text
