"""Name and memory of the first NVIDIA GPU of this machine, read from the driver without torch or a CUDA context."""

from __future__ import annotations

import ctypes

_NVML = "libnvidia-ml.so.1"
_NAME_BYTES = 96


class _Memory(ctypes.Structure):
    """NVML's C structure `nvmlMemory_t`."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]  # ctypes reads this attribute


def gpu_memory() -> int | None:
    """Return the memory of the first NVIDIA GPU, in bytes; None without a GPU."""
    memory = _Memory()
    return int(memory.total) if _read("nvmlDeviceGetMemoryInfo", ctypes.byref(memory)) else None


def gpu_name() -> str | None:
    """Return the name of the first NVIDIA GPU, such as `NVIDIA H100 80GB HBM3`; None without a GPU."""
    name = ctypes.create_string_buffer(_NAME_BYTES)
    found = _read("nvmlDeviceGetName", name, ctypes.c_uint(_NAME_BYTES))
    return name.value.decode(errors="replace") if found else None


def _read(function: str, *into: object) -> bool:
    """Call a function of NVML for the first GPU; return False if there is no driver or no GPU."""
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        return False
    handle = ctypes.c_void_p()
    failed = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    return not (failed or library[function](handle, *into))
