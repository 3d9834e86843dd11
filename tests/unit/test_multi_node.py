"""What scripts/multi_node.sh decides before it makes anything: wrong usage, and machines without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.documents import ROOT

SCRIPT = str(ROOT / "scripts" / "multi_node.sh")


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path or os.environ["PATH"]},
    )


def command(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "up, exec, env, run or down"),
        (["fly"], "up, exec, env, run or down"),
        (["up", "--fly"], "unknown option '--fly'"),
        (["up", "--devices"], "--devices needs a value"),
        (["up", "--devices", "2,x"], "numbers with a comma between them"),
        (["up", "--name", "../etc"], "--name ../etc"),
        (["exec", "1"], "exec needs a node and a command"),
        (["run"], "run needs a command"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr


def test_a_user_that_is_not_root_is_told(tmp_path: Path) -> None:
    command(tmp_path, "id", "echo 1000")
    done = run("up", "--name", "unittest", path=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 3
    assert done.stderr.startswith("Error: making network namespaces needs root")


def test_a_machine_that_allows_no_namespace_is_told(tmp_path: Path) -> None:
    command(tmp_path, "id", "echo 0")
    for name in ("unshare", "nsenter", "setsid", "mount"):
        command(tmp_path, name, "exit 1")
    command(tmp_path, "ip", "echo 'Operation not permitted' >&2; exit 1")
    done = run("up", "--name", "unittest", path=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 3
    assert "allows no network namespace: Operation not permitted" in done.stderr


def test_down_is_fine_where_nothing_is_up() -> None:
    assert run("down", "--name", "unittest").returncode == 0


def test_a_node_that_is_not_there() -> None:
    for arguments in (
        ["exec", "--name", "unittest", "1", "true"],
        ["env", "--name", "unittest", "1"],
    ):
        done = run(*arguments)
        assert done.returncode == 1
        assert "there is no node" in done.stderr


# -- real namespaces, and a stand-in for Ray: what is between the nodes -------------------------

#: Runs everything but Ray, for which it only says what Ray says.
STAND_IN = """case "$*" in
  *ray.scripts.scripts*) echo 'Ray runtime started.'; exec sleep 600 ;;
  *) exec "{python}" "$@" ;;
esac"""

#: Connects to what it is told, and says what it heard.
ASK = """import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3) as connection:
        print(connection.recv(9).decode())
except OSError as error:
    print(type(error).__name__)"""

ANSWER = """import socket, sys
with socket.create_server(('0.0.0.0', int(sys.argv[1]))) as server:
    print('ready', flush=True)
    while True:
        server.accept()[0].sendall(b'heard')"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        command(folder, "python", STAND_IN.format(python=sys.executable))
        self.path = f"{folder}:{os.environ['PATH']}"
        self.name = f"u{os.getpid()}"
        self._answering: list[subprocess.Popen[str]] = []

    def run(self, what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(what, "--name", self.name, *arguments, path=self.path)

    def up(self, *options: str) -> None:
        done = self.run("up", *options)
        if done.returncode == 3:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr

    def answer(self, node: int, port: int) -> None:
        process = subprocess.Popen(
            [
                "bash",
                SCRIPT,
                "exec",
                "--name",
                self.name,
                str(node),
                "python",
                "-c",
                ANSWER,
                str(port),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PATH": self.path},
        )
        self._answering.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def ask(self, node: int, address: str, port: int) -> str:
        return self.run("exec", str(node), "python", "-c", ASK, address, str(port)).stdout.strip()

    def down(self) -> None:
        done = self.run("down")
        assert (done.returncode, done.stderr) == (0, "")
        for process in self._answering:
            process.communicate(timeout=10)  # it was ended with its node
        self._answering.clear()

    def is_there(self) -> bool:
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        return f"{self.name}-" in spaces or Path(f"/tmp/raycompat-{self.name}").exists()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.down()
    assert not made.is_there()


@pytest.mark.parametrize("options", [["--devices", "1,1"], ["--devices", "1,0,1"]])
def test_nodes_reach_each_other_and_nobody_else(cluster: Cluster, options: list[str]) -> None:
    cluster.up(*options)
    cluster.answer(1, 41000)
    last = options[1].count(",") + 1
    assert cluster.ask(last, "198.18.0.1", 41000) == "heard"
    interfaces = cluster.run("exec", "1", "ls", "/sys/class/net").stdout.split()
    assert sorted(interfaces) == ["lo", "ray0"]
    assert cluster.run("exec", "1", "ip", "route", "get", "192.0.2.1").returncode != 0
    cluster.down()
    assert not cluster.is_there()


def test_nodes_share_no_memory_and_no_processes(cluster: Cluster) -> None:
    cluster.up()
    assert cluster.run("exec", "1", "touch", "/dev/shm/mine").returncode == 0
    assert cluster.run("exec", "2", "ls", "/dev/shm").stdout == ""
    assert not Path("/dev/shm/mine").exists()
    seen = cluster.run("exec", "2", "ps", "-e", "-o", "pid=").stdout.split()
    assert len(seen) < 10


def test_only_the_ports_of_ray(cluster: Cluster) -> None:
    cluster.up("--ports", "ray-only")
    cluster.answer(1, 41000)
    cluster.answer(1, 10100)
    assert cluster.ask(2, "198.18.0.1", 41000) == "TimeoutError"
    assert cluster.ask(2, "198.18.0.1", 10100) == "heard"


def test_a_delay_is_felt(cluster: Cluster) -> None:
    cluster.up("--delay", "100ms")
    cluster.answer(1, 41000)
    began = time.monotonic()
    assert cluster.ask(2, "198.18.0.1", 41000) == "heard"
    assert time.monotonic() - began > 0.4  # there and back, for the connection and for the answer


def test_variables_of_one_node(cluster: Cluster) -> None:
    cluster.up("--env", "2:VLLM_HOST_IP=198.18.0.99", "--env", "MINE=1")
    for node, address in (("1", "198.18.0.1"), ("2", "198.18.0.99")):
        found = cluster.run("exec", node, "env").stdout.splitlines()
        assert f"VLLM_HOST_IP={address}" in found
        assert {"MINE=1", "GLOO_SOCKET_IFNAME=ray0", "RAY_AUTH_MODE=token"} <= set(found)


def test_it_goes_down_with_its_owner_and_holds_no_lock(cluster: Cluster) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        reading, writing = os.pipe()
        done = subprocess.run(
            ["bash", SCRIPT, "up", "--name", cluster.name, "--owner", str(owner.pid)],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": cluster.path},
            pass_fds=[writing],
        )
        os.close(writing)
        try:
            if done.returncode == 3:
                pytest.skip(done.stderr.strip())
            assert os.read(reading, 1) == b"", "somebody still has it open"
            assert cluster.run("up").returncode == 2, "twice"
            assert cluster.is_there()
        finally:
            os.close(reading)
            owner.kill()
    for _ in range(100):
        if not cluster.is_there():
            return
        time.sleep(0.1)
    pytest.fail("still there")


def test_down_ends_who_waits_for_the_owner(cluster: Cluster) -> None:
    """Or it would take down another cluster of that name."""
    done = cluster.run("up", "--owner", str(os.getpid()))
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    waits = [p for p in psutil.process_iter() if cluster.name in command_line(p)]
    assert waits
    assert cluster.run("down").returncode == 0
    _, alive = psutil.wait_procs(waits, timeout=10)
    assert alive == []


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_run_ends_as_its_command_does(cluster: Cluster) -> None:
    done = cluster.run("run", "--", "bash", "-c", "echo on $VLLM_HOST_IP; exit 7")
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout) == (7, "on 198.18.0.1\n")
    assert not cluster.is_there()
