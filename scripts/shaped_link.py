#!/usr/bin/env python3
"""Join network namespaces by a link with delay, loss and a firewall, where the kernel has none.

python scripts/shaped_link.py --interface ray0 [--delay 20ms] [--loss 1%] [--ports 6379,10002-10999]
    NAMESPACE=ADDRESS...

Stands in for ``tc netem`` and a packet filter. Each namespace gets a TUN interface, and this
process carries the IP packets between them: real packets and the kernel's own TCP, with its
retransmissions. It says ``ready`` when all interfaces are there (the caller gives them their
addresses), and they are gone when it ends. Imports nothing but Python; needs root on Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import ipaddress
import os
import random
import re
import select
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000

_TCP, _UDP = 6, 17
_SYN, _ACK = 0x02, 0x10
#: Longer than any packet: the interfaces have an MTU of 1500 bytes.
_LONGEST = 65536
#: Packets under way; beyond them a link with a delay drops, as netem does.
_QUEUE = 10_000

Ports = tuple[tuple[int, int], ...]


def milliseconds(text: str) -> float:
    """Parse ``20ms``, as tc writes it."""
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)ms", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in milliseconds such as 20ms")
    return float(found.group(1))


def percent(text: str) -> float:
    """Parse ``1%`` into 0.01."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if not found or float(found.group(1)) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage such as 1%")
    return float(found.group(1)) / 100


def port_ranges(text: str) -> Ports:
    """Parse ``6379,10002-10999``."""
    ranges = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            raise argparse.ArgumentTypeError(f"{part!r} is no port, and no range such as 100-200")
        ranges.append((int(first), int(last or first)))
    return tuple(ranges)


def passes(packet: bytes, ports: Ports) -> bool:
    """Say whether a firewall that has only *ports* open lets an IPv4 packet through.

    A TCP connection is judged by its first packet, as a stateful filter does; UDP has none open.
    What is neither (ICMP) passes.
    """
    protocol, header = packet[9], (packet[0] & 0x0F) * 4
    fragment = int.from_bytes(packet[6:8], "big") & 0x1FFF
    if protocol == _UDP:
        return False
    if protocol != _TCP or fragment or len(packet) < header + 14:
        return True
    flags = packet[header + 13]
    if flags & (_SYN | _ACK) != _SYN:
        return True
    port = int.from_bytes(packet[header + 2 : header + 4], "big")
    return any(first <= port <= last for first, last in ports)


def described(packet: bytes) -> str:
    """Return ``source:port -> destination:port`` of a TCP or UDP packet."""
    header = (packet[0] & 0x0F) * 4
    source, destination = (ipaddress.IPv4Address(packet[i : i + 4]) for i in (12, 16))
    ports = struct.unpack_from("!HH", packet, header)
    return f"{source}:{ports[0]} -> {destination}:{ports[1]}"


def open_tun(namespace: str, interface: str) -> int:
    """Make a TUN interface in a named network namespace; returns its file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if libc.setns(descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        finally:
            os.close(descriptor)

    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        enter(str(Path("/run/netns", namespace)))
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH22x", interface.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(tun, _TUNSETIFF, request)
        return tun
    finally:
        enter(f"/proc/self/fd/{home}")
        os.close(home)


class Link:
    """Carries packets between interfaces."""

    def __init__(
        self, tuns: dict[bytes, int], delay_s: float, loss: float, ports: Ports | None
    ) -> None:
        """Join *tuns* (address in four bytes -> descriptor); *ports* None: all are open."""
        self._tuns = tuns
        self._delay_s = delay_s
        self._loss = loss
        self._ports = ports
        # Seeded: two runs lose the same packets of the same traffic.
        self._random = random.Random(0)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._count = 0

    def run(self, end: int | None = None) -> None:
        """Work until the process is ended, or descriptor *end* is readable."""
        poll = select.poll()
        if end is not None:
            poll.register(end, select.POLLIN)
        for tun in self._tuns.values():
            poll.register(tun, select.POLLIN)
        while True:
            wait_ms = None
            if self._under_way:
                wait_ms = max(0.0, (self._under_way[0][0] - time.monotonic()) * 1000)
            for tun, _ in poll.poll(wait_ms):
                if tun == end:
                    return
                self._take(tun)
            now = time.monotonic()
            while self._under_way and self._under_way[0][0] <= now:
                _, _, target, packet = heapq.heappop(self._under_way)
                self._give(target, packet)

    def _take(self, tun: int) -> None:
        for _ in range(64):  # the others have a turn, too
            try:
                packet = os.read(tun, _LONGEST)
            except BlockingIOError:
                return
            target = self._tuns.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is None:
                continue
            if self._ports is not None and not passes(packet, self._ports):
                print(f"blocked {described(packet)}", flush=True)
                continue
            if self._loss and self._random.random() < self._loss:
                continue
            if not self._delay_s:
                self._give(target, packet)
            elif len(self._under_way) < _QUEUE:
                self._count += 1
                due = time.monotonic() + self._delay_s
                heapq.heappush(self._under_way, (due, self._count, target, packet))

    @staticmethod
    def _give(tun: int, packet: bytes) -> None:
        try:
            os.write(tun, packet)
        except OSError as error:  # the interface is down, or full: the packet is lost, TCP repeats
            print(f"lost a packet: {error}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the interfaces and carry packets until the process is ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--interface", required=True)
    parser.add_argument("--delay", type=milliseconds, default=0.0, help="each way, such as 20ms")
    parser.add_argument("--loss", type=percent, default=0.0, help="of packets, such as 1%%")
    parser.add_argument("--ports", type=port_ranges, help="the TCP ports that are open; all others "
                        "are closed in silence")  # fmt: skip
    parser.add_argument("namespaces", nargs="+", metavar="NAMESPACE=ADDRESS")
    given = parser.parse_args(argv)
    tuns = {}
    for namespace in given.namespaces:
        name, _, address = namespace.partition("=")
        tuns[ipaddress.IPv4Address(address).packed] = open_tun(name, given.interface)
    print("ready", flush=True)
    Link(tuns, given.delay / 1000, given.loss, given.ports).run()


if __name__ == "__main__":
    try:
        main()
    except OSError as problem:
        sys.exit(f"Error: no shaped link between the namespaces: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
