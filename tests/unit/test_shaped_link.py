"""The link of scripts/shaped_link.py: what its firewall lets through, what it delays and loses."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.documents import ROOT

SYN, ACK, RST = 0x02, 0x10, 0x04
HERE, THERE = socket.inet_aton("198.18.0.1"), socket.inet_aton("198.18.0.2")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shaped_link", ROOT / "scripts/shaped_link.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


link = load()


def packet(
    port: int = 40000, flags: int = SYN, *, protocol: int = 6, options: int = 0, fragment: int = 0
) -> bytes:
    ip = struct.pack(
        "!BBHHHBBH4s4s", 0x45 + options // 4, 0, 0, 0, fragment, 64, protocol, 0, HERE, THERE
    )
    tcp = struct.pack("!HHIIBBHHH", 1234, port, 0, 0, 0x50, flags, 0, 0, 0)
    return ip + bytes(options) + tcp


@pytest.mark.parametrize(
    ("one", "passes"),
    [
        (packet(6379), True),
        (packet(10500), True),
        (packet(40000), False),
        (packet(40000, options=8), False),
        (packet(40000, SYN | ACK), True),  # the answer to what had passed
        (packet(40000, ACK), True),
        (packet(40000, RST), True),
        (packet(6379, protocol=17), False),
        (packet(40000, protocol=1), True),
        (packet(40000, fragment=185), True),  # the first one was judged
    ],
)
def test_a_connection_is_judged_by_its_first_packet(one: bytes, passes: bool) -> None:
    assert link.passes(one, ((6379, 6379), (10002, 10999))) is passes


def test_what_is_blocked_is_told() -> None:
    assert link.described(packet(40000)) == "198.18.0.1:1234 -> 198.18.0.2:40000"


def test_values_as_tc_writes_them() -> None:
    assert link.milliseconds("20ms") == 20
    assert link.percent("1%") == 0.01
    assert link.port_ranges("6379,10002-10999") == ((6379, 6379), (10002, 10999))


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        ("milliseconds", "20"),
        ("milliseconds", "1s"),
        ("percent", "1"),
        ("percent", "101%"),
        ("port_ranges", "a"),
        ("port_ranges", "1,"),
        ("port_ranges", "1-b"),
    ],
)
def test_other_values_are_refused(parse: str, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no"):
        getattr(link, parse)(text)


class Ends:
    """A link between two ends; sockets that keep the limits of messages stand for interfaces."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.here, self.there = (pair[0] for pair in pairs)
        self._inner = [pair[1] for pair in pairs]
        for one in self._inner:
            one.setblocking(False)
        self._end, self._ended = os.pipe()
        self._thread: threading.Thread | None = None
        self.there.settimeout(5)

    def join(self, delay_s: float = 0.0, loss: float = 0.0, ports: object = None) -> None:
        tuns = dict(zip((HERE, THERE), (one.fileno() for one in self._inner), strict=True))
        running = link.Link(tuns, delay_s, loss, ports)
        self._thread = threading.Thread(target=running.run, args=[self._end])
        self._thread.start()

    def close(self) -> None:
        os.write(self._ended, b"x")
        if self._thread is not None:
            self._thread.join()
        for one in (self.here, self.there, *self._inner):
            one.close()
        os.close(self._end)
        os.close(self._ended)

    def arrived(self) -> int:
        """How many packets are there, when none came for a while."""
        self.there.settimeout(0.3)
        count = 0
        with contextlib.suppress(TimeoutError):
            while True:
                self.there.recv(2000)
                count += 1
        return count


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_a_packet_goes_where_its_address_says(ends: Ends) -> None:
    ends.join()
    ends.here.send(packet())
    assert ends.there.recv(2000) == packet()


def test_a_packet_is_late_by_the_delay_and_in_order(ends: Ends) -> None:
    ends.join(delay_s=0.1)
    began = time.monotonic()
    for port in (1, 2, 3):
        ends.here.send(packet(port))
    assert [ends.there.recv(2000) for _ in range(3)] == [packet(1), packet(2), packet(3)]
    assert time.monotonic() - began >= 0.1


def test_some_are_lost(ends: Ends) -> None:
    ends.join(loss=0.5)
    for _ in range(100):
        ends.here.send(packet())
        time.sleep(0.001)
    assert 20 < ends.arrived() < 80


def test_closed_ports_are_silent(ends: Ends, capfd: pytest.CaptureFixture[str]) -> None:
    ends.join(ports=((6379, 6379),))
    ends.here.send(packet(40000))
    ends.here.send(packet(6379))
    assert ends.there.recv(2000) == packet(6379)
    assert "blocked 198.18.0.1:1234 -> 198.18.0.2:40000" in capfd.readouterr().out


def test_addresses_of_nobody_go_nowhere(ends: Ends) -> None:
    ends.join()
    ends.here.send(packet().replace(THERE, socket.inet_aton("198.18.0.9")))
    assert ends.arrived() == 0
