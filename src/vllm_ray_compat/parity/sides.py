"""Which executor an arm runs, and in which Python environment: ``legacy`` or ``legacy@PYTHON``.

Run as ``python -m vllm_ray_compat.parity.sides BACKEND`` it tells, as one JSON object, what the
environment of that interpreter has: so another one is asked, and nothing about it is guessed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from vllm_ray_compat.errors import (
    EXIT_ENVIRONMENT,
    RaycompatError,
    UnusableEnvironmentError,
    UsageError,
    unknown,
)
from vllm_ray_compat.executors import catalog
from vllm_ray_compat.flag import Flag, FlagValue
from vllm_ray_compat.parity.backends import MP, MP_EXECUTOR, is_class, kind_of, short_name
from vllm_ray_compat.parity.capture import SCHEMA
from vllm_ray_compat.schedule import (
    COMPAT_EXECUTORS,
    Backend,
)
from vllm_ray_compat.selector import select
from vllm_ray_compat.settings import Settings, read_settings
from vllm_ray_compat.vllm_api import find_vllm

BACKENDS: tuple[str, ...] = (Backend.LEGACY.value, Backend.V2.value, MP)

_ANSWER_WITHIN_S = 60


class RayMissingError(UnusableEnvironmentError):
    """Ray is not installed (exit code 3)."""

    def __str__(self) -> str:
        return (
            "Ray is not installed in this Python environment, and the legacy and v2 executors "
            "need it. Install it: pip install 'ray[cgraph]' (without a GPU: pip install ray)."
        )


class InterpreterError(UnusableEnvironmentError):
    """Another Python environment cannot run its arm."""


@dataclass(frozen=True)
class Side:
    """An executor in a Python environment.

    Attributes:
        backend: ``legacy``, ``v2``, ``mp`` or ``module:Class``.
        executor: the class that the arm must turn out to run.
        vllm: the release of that environment.
        is_cpu_build: of that vLLM.
        python: the interpreter; None for this one.
    """

    backend: str
    executor: str
    vllm: str
    is_cpu_build: bool
    python: str | None = None

    @property
    def name(self) -> str:
        """How it is called: ``legacy``, or ``legacy@0.19.1`` in another environment."""
        short = short_name(self.backend)
        return short if self.python is None else f"{short}@{self.vllm}"

    @property
    def kind(self) -> str:
        """See :func:`kind_of`."""
        return kind_of(self.backend)

    @property
    def platform(self) -> str:
        """The platform of its vLLM, as suites name it."""
        return "cpu" if self.is_cpu_build else "cuda"

    @property
    def restores_legacy(self) -> bool:
        """Whether it is the legacy executor of a release that no longer ships one."""
        return self.backend == Backend.LEGACY.value and self.executor in COMPAT_EXECUTORS.values()


def resolve(text: str) -> Side:
    """Find out about ``BACKEND`` or ``BACKEND@PYTHON``.

    Raises:
        UsageError: no such backend, or no such interpreter.
        UnusableEnvironmentError: the environment lacks what the arm needs.
    """
    backend, at, python = text.partition("@")
    if not is_class(backend) and backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    return _ask(backend, python) if at else _here(backend)


def _here(backend: str) -> Side:
    if is_class(backend):
        _check_class(backend)
    vllm = find_vllm()
    if backend != MP and importlib.util.find_spec("ray") is None:
        raise RayMissingError
    executor = MP_EXECUTOR if backend == MP else backend
    if backend in (Backend.LEGACY.value, Backend.V2.value):
        value = FlagValue.OFF if backend == Backend.LEGACY.value else FlagValue.ON
        here = read_settings()
        settings = Settings(
            restore_legacy=True, repairs=here.repairs, unwanted_repairs=here.unwanted_repairs
        )
        decision = select(vllm, flag=Flag(value), settings=settings)
        if not catalog.is_present(decision):
            raise catalog.ExecutorMissingError(catalog.missing_text(decision))
        executor = decision.loaded
    return Side(backend, executor, vllm.version, vllm.is_cpu_build)


def _check_class(backend: str) -> None:
    """Check that a backend given as ``module:Class`` has a module, without importing it.

    Raises:
        UsageError: it has none.
    """
    module, _, name = backend.partition(":")
    try:
        found = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        found = None
    if found is None or not name.isidentifier():
        raise UsageError(
            f"Backend {backend!r} names no executor class: give module:Class, or one of "
            f"{', '.join(BACKENDS)}."
        )


def _ask(backend: str, python: str) -> Side:
    found = shutil.which(os.path.expanduser(python)) if python else None  # noqa: PTH111 (a command)
    if found is None:
        raise UsageError(
            f"{backend}@{python}: there is no interpreter {python!r}. Give the path of a Python, "
            "for example legacy@vllm-0.19/bin/python."
        )
    command = [found, "-m", __name__, backend]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False
        )
    except OSError as error:
        raise UsageError(f"{backend}@{python}: {found} cannot be run: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise InterpreterError(
            f"{backend}@{python}: {found} said nothing for {_ANSWER_WITHIN_S} s."
        ) from None
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InterpreterError(
            f"{backend}@{python}: {found} cannot run an arm ({last}). Install this package there, "
            "with its extra: pip install 'vllm-ray-compat[cli]'."
        ) from None
    if "error" in told:
        kind = InterpreterError if done.returncode == EXIT_ENVIRONMENT else UsageError
        raise kind(f"{backend}@{python}: {told['error']}")
    if told.pop("schema", None) != SCHEMA:
        raise InterpreterError(
            f"{backend}@{python}: the vllm-ray-compat there writes other captures than {SCHEMA}. "
            "Install the same version in both environments."
        )
    return Side(**{**told, "python": found})


def main(argv: list[str]) -> int:
    """Tell about the backend ``argv[0]`` in this environment; returns the exit code."""
    try:
        side = _here(argv[0])
    except RaycompatError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201 (the answer)
        return error.exit_code
    print(json.dumps({"schema": SCHEMA, **asdict(side)}))  # noqa: T201 (the answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
