"""Filter of the kernel that drops the packets of new connections from some networks (rule T12).

Caller: ``bound_socket``. granian accepts every connection itself. A filter on the listening socket is therefore the
only place where a broker can refuse a connection before the first request. A client whose packets are dropped tries to
connect again, as it does after a lost packet. Connections that exist are not affected.

The program is a classic BPF program (McCanne and Jacobson, "The BSD Packet Filter", 1993), which needs no rights.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final, TypeAlias

from fairlead_broker.credentials.failure_budget import IPV4_PREFIX

NETWORKS_MAX: Final = 32
"""Maximum number of networks in a filter; a jump of a program passes at most 255 instructions."""
SO_ATTACH_FILTER: Final = 26
SO_DETACH_FILTER: Final = 27
"""Socket options of Linux that the module `socket` does not name."""
NETWORK_HEADER: Final = 0xFFF00000
"""Offset from which Linux reads the header of the network protocol (`SKF_NET_OFF`)."""
IPV4_SOURCE: Final = 12
IPV6_SOURCE: Final = 8
"""Offset of the client's address in the header."""
LOAD_BYTE, LOAD_WORD, SHIFT_RIGHT, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
DROP, KEEP = 0, 0xFFFFFFFF
VERSION_BITS: Final = 4
IPV4: Final = 4

Instruction: TypeAlias = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, and operand."""


def attach(listening: socket.socket, networks: Collection[str]) -> None:
    """Drop the packets of new connections from these networks, or of none if `networks` is empty.

    `networks`: at most `NETWORKS_MAX` results of `network_of`. Raises OSError if the system has no such filters.
    """
    if not networks:
        listening.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        return
    instructions = program(networks)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    option = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)


def program(networks: Iterable[str]) -> list[Instruction]:
    """Return the program that drops packets from these networks; texts that are no network are left out."""
    addresses = []
    for each in networks:
        with suppress(ValueError):
            addresses.append(ipaddress.ip_network(each.removeprefix(IPV4_PREFIX)))
    older = [int(each.network_address) for each in addresses if each.version == IPV4]
    newer = [int(each.network_address) >> 64 for each in addresses if each.version != IPV4]
    ipv4 = [_load(IPV4_SOURCE)]
    for address in older:
        ipv4 += [(JUMP_IF_EQUAL, 0, 1, address), (RETURN, 0, 0, DROP)]
    ipv4.append((RETURN, 0, 0, KEEP))
    ipv6: list[Instruction] = []
    for network in newer:
        ipv6 += [
            _load(IPV6_SOURCE),
            (JUMP_IF_EQUAL, 0, 3, network >> 32),
            _load(IPV6_SOURCE + 4),
            (JUMP_IF_EQUAL, 0, 1, network & 0xFFFFFFFF),
            (RETURN, 0, 0, DROP),
        ]
    ipv6.append((RETURN, 0, 0, KEEP))
    version = [(LOAD_BYTE, 0, 0, NETWORK_HEADER), (SHIFT_RIGHT, 0, 0, VERSION_BITS)]
    return [*version, (JUMP_IF_EQUAL, 0, len(ipv4), IPV4), *ipv4, *ipv6]


def _load(offset: int) -> Instruction:
    return LOAD_WORD, 0, 0, NETWORK_HEADER + offset
