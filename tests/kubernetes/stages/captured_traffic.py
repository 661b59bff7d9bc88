"""Capture of all packets on the networks of the nodes, and search of their payloads for plaintext (proof V12).

The module is also the program that captures, which runs in the network of the box. `python captured_traffic.py WORD...`
prints `capturing` when the capture has begun, and when standard input ends, a JSON object with the TCP ports of servers
that were seen, and the ports on which each word was found.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pods_stage import PodsStage

EVERY_PROTOCOL: Final = 3
TCP: Final = 6
SOURCE: Final = 12
"""Position of the source address in an IPv4 packet."""
LOOPBACK: Final = 127
"""First byte of loopback addresses."""
BUFFER_BYTES: Final = 64 << 20
PACKET_BYTES_MAX: Final = 1 << 17
EPHEMERAL: Final = 32_768
"""First port number that the operating system chooses for clients. The servers of a Cluster use lower numbers."""
TIMEOUT_SECONDS: Final = 60.0


@dataclass
class Captured:
    """Result of a capture, available at its end."""

    ports: set[int] = field(default_factory=set)
    """Ports of servers that sent or received packets."""
    found: dict[str, set[int]] = field(default_factory=dict)
    """Ports of servers on which each word was found."""


@contextmanager
def captured_traffic(stage: PodsStage, *words: str) -> Iterator[Captured]:
    """Capture all packets during the block and search them for words."""
    captured = Captured()
    kubernetes = stage.kubernetes
    with subprocess.Popen(
        [*kubernetes.enter, sys.executable, __file__, *words],
        env=kubernetes.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None, "its output is a pipe"
            assert process.stdout.readline() == "capturing\n", "the capture has not begun"
            yield captured
            printed, _ = process.communicate("", timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    result = json.loads(printed)
    captured.ports = set(result["ports"])
    captured.found = {word: set(ports) for word, ports in result["found"].items()}


def servers_of(packet: bytes) -> set[int]:
    """Return the ports of servers in an IPv4 packet with TCP, and no port for other packets.

    Packets from a loopback address belong to the API server and its etcd, which stores Secrets. Pods have other
    addresses.
    """
    if len(packet) < 20 or packet[0] >> 4 != 4 or packet[9] != TCP or packet[SOURCE] == LOOPBACK:
        return set()
    begin = (packet[0] & 15) * 4
    both = int.from_bytes(packet[begin : begin + 2]), int.from_bytes(packet[begin + 2 : begin + 4])
    return {port for port in both if port < EPHEMERAL}


def capture(words: list[str]) -> None:
    """Capture packets until standard input ends, and print what was found."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(EVERY_PROTOCOL))
    packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    sys.stdout.write("capturing\n")
    sys.stdout.flush()
    ports, found = set[int](), {word: set[int]() for word in words}
    while True:
        readable, _, _ = select.select([sys.stdin, packets], [], [])
        if sys.stdin in readable:
            break
        packet = packets.recv(PACKET_BYTES_MAX)
        servers = servers_of(packet)
        ports |= servers
        for word in words if servers else ():
            if word.encode() in packet:
                found[word] |= servers
    result = {"ports": sorted(ports), "found": {word: sorted(each) for word, each in found.items()}}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    capture(sys.argv[1:])
