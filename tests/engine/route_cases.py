"""Run by test_routing.py as its own process: vLLM is imported once, then each case is a fork.

Plugins load, configurations are built and the executor class is asked for just as in an engine's
start; no engine is started. A case is a JSON object on a line of standard input; the answer is
one on standard output. The forks happen before any plugin is loaded and any thread matters.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import warnings
from typing import Any

import vllm.engine.arg_utils  # noqa: F401  (imported here, so that each fork has it for free)
from vllm import EngineArgs

_LOGGER = "vllm.plugins.vllm_ray_compat"


def ask(case: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(case["environ"])
    records: list[str] = []

    real = logging.Logger.callHandlers

    def keep(self: logging.Logger, record: logging.LogRecord) -> None:
        """Keep what reaches vLLM's handlers (one of our own would go when vLLM sets them up)."""
        if self.name == _LOGGER:
            records.append(f"{record.levelname} {record.getMessage()}")
        real(self, record)

    logging.Logger.callHandlers = keep  # type: ignore[method-assign]
    answer: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            for _ in range(case.get("times", 1)):
                config = EngineArgs(
                    model=case["model"],
                    tensor_parallel_size=2,
                    distributed_executor_backend=case["backend"],
                    enforce_eager=True,
                    max_model_len=128,
                    fail_on_environ_validation=case.get("validate", False),
                ).create_engine_config()
                from vllm.v1.executor.abstract import Executor

                executor = Executor.get_class(config)
            answer["executor"] = f"{executor.__module__}:{executor.__qualname__}"
            answer["backend"] = config.parallel_config.distributed_executor_backend
            answer["worker"] = config.parallel_config.worker_cls
            # What EngineCore and every worker do with the environment, whatever the backend.
            from vllm import envs

            envs.enable_envs_cache()
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
    answer["warnings"] = [
        [w.category.__name__, str(w.message), w.filename]
        for w in seen
        if w.category.__module__.startswith("vllm_ray_compat")
    ]
    answer["log"] = records
    return answer


def main() -> None:
    for line in sys.stdin:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.redirect_stdout(io.StringIO()):
                answer = ask(json.loads(line))
            with os.fdopen(write, "w") as pipe:
                json.dump(answer, pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            print("ANSWER " + pipe.read(), flush=True)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
