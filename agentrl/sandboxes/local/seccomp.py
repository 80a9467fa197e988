"""A seccomp filter that refuses system calls that a sandbox does not need. See seccomp(2) and linux/filter.h."""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Mapping, Sequence

from agentrl.errors import ConfigError

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data; arguments have 8 bytes, the lower half first."""
_X32 = 0x40000000
"""Bit that is set in call numbers of the x32 interface, which numbers the calls differently."""

_COMMON = {"clone3": 435, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428}
_COMMON |= {"move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438}
_COMMON |= {"mount_setattr": 442, "process_madvise": 440}
_X86_64 = {
    "ptrace": 101,
    "syslog": 103,
    "personality": 135,
    "pivot_root": 155,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "clock_settime": 227,
    "mbind": 237,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "chroot": 161,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "vhangup": 153,
}
_AARCH64 = {
    "ptrace": 117,
    "syslog": 116,
    "personality": 92,
    "pivot_root": 41,
    "acct": 89,
    "settimeofday": 170,
    "mount": 40,
    "umount2": 39,
    "swapon": 224,
    "swapoff": 225,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "init_module": 105,
    "delete_module": 106,
    "quotactl": 60,
    "clock_settime": 112,
    "mbind": 235,
    "kexec_load": 104,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "migrate_pages": 238,
    "unshare": 97,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "kexec_file_load": 294,
    "bpf": 280,
    "userfaultfd": 282,
    "chroot": 51,
    "adjtimex": 171,
    "clock_adjtime": 266,
    "vhangup": 58,
}
_MACHINES: Mapping[str, tuple[int, int, int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, 56, 41, _X86_64),
    "aarch64": (0xC00000B7, 220, 198, _AARCH64),
}
"""Machine -> audit architecture, call number of `clone`, call number of `socket`, and refused calls."""
_NEW_NAMESPACES = 0x7E020080
"""The CLONE_NEW... flags of clone(2)."""
_FAMILIES = (1, 2, 10)
"""Allowed families of sockets: unix, IPv4 and IPv6. Network namespaces do not isolate other families, such as vsock."""


def new_filter() -> bytes:
    """Return the filter for this machine's processor.

    Raises:
        ConfigError: there is no filter for this processor.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise ConfigError.keyless(f"local sandboxes need an x86_64 or aarch64 processor, not {machine}")
    architecture, clone, socket, refused = _MACHINES[machine]
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        *([_step(_JUMP_GREATER_EQUAL, _X32, 0, 1), _step(_RETURN, _KILL)] if machine == "x86_64" else []),
        *_refuse({**refused, **_COMMON}),
        *_checked(clone, [_step(_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1), _step(_RETURN, _ERRNO | _EPERM)]),
        *_checked(socket, _only(_FAMILIES)),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction (struct sock_filter)."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(calls: Mapping[str, int]) -> list[bytes]:
    found = []
    for name, number in calls.items():
        # after ENOSYS for clone3, the C library calls clone; a filter can check the flags of clone, not of clone3
        error = _ENOSYS if name == "clone3" else _EPERM
        found += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | error)]
    return found


def _checked(number: int, checks: Sequence[bytes]) -> list[bytes]:
    """Return instructions that check a system call's first argument; if the argument passes, the call is allowed."""
    body = [_step(_LOAD, _FIRST_ARGUMENT), *checks, _step(_RETURN, _ALLOW)]
    return [_step(_JUMP_EQUAL, number, 0, len(body)), *body]


def _only(values: Sequence[int]) -> list[bytes]:
    allowed = [_step(_JUMP_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    return [*allowed, _step(_RETURN, _ERRNO | _EPERM)]


def filter_descriptor() -> int:
    """Return a new file descriptor from which the filter can be read."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(new_filter())
    return reading
