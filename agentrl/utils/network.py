"""Network interfaces of this machine."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

SIOCGIFADDR = 0x8915
"""The ioctl request for the IPv4 address of an interface (`man 7 netdevice`)."""


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address, such as eth0; None if no interface has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
