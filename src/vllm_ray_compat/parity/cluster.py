"""A Ray cluster of the run's own: one head node, started for the run and stopped after it.

Without one, ``ray.init`` inside vLLM starts a second, empty cluster and waits half an hour for
devices. ``ray stop`` is never used: it would stop other people's clusters on this machine.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import psutil

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.ownership import descendants, kill_all, session_members, spawn
from vllm_ray_compat.shared_memory import FOLDER

_NODE_IP = re.compile(r"Local node IP: (\S+)")
_STARTED = "Ray runtime started"
_SEMAPHORE = re.compile(r"sem\.(?:hdr|obj)(\d+)-")
#: Megabytes are enough: only vLLM's configuration and results travel through the object store.
_OBJECT_STORE_BYTES = 256 * 1024 * 1024


class ClusterError(UnusableEnvironmentError):
    """Ray could not be started (exit code 3); the text ends with the last lines of its log."""


class RayCluster:
    """A one-node Ray cluster; a context manager.

    Attributes:
        address: ``ip:port`` for ``RAY_ADDRESS``.
        node_ip: the address Ray gave its node; vLLM's ``VLLM_HOST_IP`` must be the same, or the
            legacy executor waits for ever for a placement group pinned to a node of another name.
    """

    def __init__(
        self,
        devices: int,
        environ: Mapping[str, str],
        log: Path,
        *,
        fake_devices: bool,
        stop: StopRequest | None = None,
        start_timeout_s: float = 60.0,
        python: str | None = None,
    ) -> None:
        """Prepare a cluster.

        Args:
            devices: how many devices the workers need at once.
            environ: the environment of every Ray process. Workers resolve vLLM's platform when
                they import it, so what selects the platform must be in here.
            log: where the output of ``ray start`` goes.
            fake_devices: declare *devices* GPUs that do not exist (CPU platform).
            stop: asked while Ray starts.
            start_timeout_s: seconds until a start counts as failed.
            python: the interpreter whose Ray it is; default this one.
        """
        self._devices = devices
        self._environ = dict(environ)
        self._log = log
        self._fake_devices = fake_devices
        self._stop = stop or StopRequest()
        self._python = python
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        # Every process that can reach the port could run code here: ask for a token (Ray ≥ 2.52;
        # older ones do not know the variables).
        self.credentials = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.address = ""
        self.node_ip = ""

    @property
    def pid(self) -> int | None:
        """The process below which all of this cluster lives; None when it is not running."""
        return self._process.pid if self._process else None

    @property
    def logs(self) -> Path | None:
        """The folder of Ray's own session logs, while the cluster runs."""
        folder = self._folder / "session_latest" / "logs" if self._folder else None
        return folder if folder is not None and folder.is_dir() else None

    def __enter__(self) -> RayCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        # Ray keeps sockets in here, and a socket's path may have 107 characters at most.
        self._folder = Path(tempfile.mkdtemp(prefix="raycompat-", dir="/tmp"))
        port = _free_port()
        arguments = [
            *("start", "--head", "--block"),
            f"--port={port}",
            f"--ray-client-server-port={_free_port()}",
            "--include-dashboard=false",
            "--disable-usage-stats",
            # With `colorful` installed (ray[default], ray[serve]) Ray colours even what goes to a
            # file, and we read it.
            "--log-color=false",
            f"--num-cpus={max(self._devices, os.cpu_count() or 1)}",
            f"--temp-dir={self._folder}",
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
        ]
        environ = {**self._environ, **self.credentials, "RAY_USAGE_STATS_ENABLED": "0"}
        environ.pop("RAY_ADDRESS", None)
        if self._fake_devices:
            arguments.append(f"--num-gpus={self._devices}")
        else:
            # Since 0.24 the legacy executor no longer sets this for its workers, and Compiled
            # Graph fails at the first step without it (defect L-1).
            environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(self._devices))))
        self._process = spawn(
            "ray.scripts.scripts",
            *arguments,
            log=self._log,
            environ=environ,
            python=self._python,
        )
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            self._stop.check()
            text = self._log.read_text(encoding="utf-8", errors="replace")
            if _STARTED in text and (match := _NODE_IP.search(text)):
                self.node_ip = match.group(1)
                self.address = f"{self.node_ip}:{port}"
                return
            if self._process.poll() is not None:
                self._fail(f"`ray start` ended with exit code {self._process.returncode}", text)
            if time.monotonic() > deadline:
                self._fail(f"Ray did not start within {self._start_timeout_s:.0f} s", text)
            time.sleep(0.1)

    def _fail(self, what: str, log: str) -> NoReturn:
        tail = " | ".join(line.strip() for line in log.splitlines()[-5:])
        raise ClusterError(f"{what}. Its log, {self._log}, ends: {tail}")

    def stop(self) -> None:
        """Stop the cluster and remove its folder. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            # By both: Ray's processes leave the group, and lose their parent when it has died.
            members = {*descendants(process.pid), *session_members(process.pid)}
            members.discard(psutil.Process(process.pid) if process.poll() is None else None)
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            kill_all([p for p in members if p.is_running()], grace_s=1.0)
            remove_semaphores({p.pid for p in members})
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def remove_semaphores(pids: set[int]) -> None:
    """Remove the semaphores of Compiled Graph's channels that processes *pids* have made.

    The raylet makes them, and leaves those of a channel whose actor was killed. Their names begin
    with the process that made them.
    """
    for path in FOLDER.glob("sem.*"):
        owner = _SEMAPHORE.match(path.name)
        if owner is not None and int(owner.group(1)) in pids:
            path.unlink(missing_ok=True)


def members(cluster: RayCluster | None) -> list[psutil.Process]:
    """Return the live processes of *cluster*, workers included."""
    return descendants(cluster.pid) if cluster is not None and cluster.pid is not None else []


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
