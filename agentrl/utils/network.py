"""Network interfaces and ports of this machine."""

from __future__ import annotations

import fcntl
import random
import socket
import struct
from contextlib import suppress

SIOCGIFADDR = 0x8915
"""The ioctl request for the IPv4 address of an interface (`man 7 netdevice`)."""
_ports: set[int] = set()
"""Ports that `free_port` returned."""


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address, such as eth0; None if no interface has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port below the range that the system gives to other programs. A process gets no port twice."""
    numbers = random.SystemRandom()  # other processes of a run may have the same seed
    while True:
        port = numbers.randrange(20000, 30000)
        with socket.socket() as probe:
            if port not in _ports and probe.connect_ex((host, port)):
                _ports.add(port)
                return port
