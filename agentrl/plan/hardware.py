"""Hardware figures: peaks, bandwidths and prices of a device, read from `configs/hardware/*.yaml` or a user's YAML."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import yaml
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from agentrl.config.base import Section
from agentrl.errors import ConfigError, suggestion
from agentrl.utils.shipped import shipped

Number = Literal["bf16", "fp8", "fp32"]
"""Data types for which a hardware file can contain a peak speed."""
Share = Annotated[float, Field(gt=0, le=1)]

GIB = 2.0**30
"""Bytes of one GiB."""
CPU = "CPU"
"""Name of the hardware whose devices are CPU processes."""
_FLEET = re.compile(r"(?:(\d{1,7})\s*[xX*]\s*)?(\S.*)")


class Hardware(Section):
    """Figures of one device and its links. GB are 10^9 bytes, GiB 2^30 bytes."""

    name: str
    """Name, as in `64xH100`."""
    memory_gib: PositiveFloat
    """Memory of a device that programs can allocate, in GiB."""
    peak_tflops: dict[Number, PositiveFloat]
    """Dense peak per data type, in 10^12 FLOP/s."""
    share_of_peak: Share
    """Share of the peak that matrix products reach in training, without communication and pipeline bubbles."""
    memory_gb_s: PositiveFloat
    """Peak bandwidth of the memory, in GB/s."""
    share_of_bandwidth: Share = 0.7
    """Share of `memory_gb_s` that decoding reaches."""
    link_gb_s: PositiveFloat
    """Bandwidth to the other devices of a node, in GB/s, in one direction."""
    network_gb_s: PositiveFloat
    """Bandwidth of a device to other nodes, in GB/s, in one direction."""
    link_latency_us: NonNegativeFloat = 15
    """Fixed time of one collective operation inside a node, in microseconds."""
    network_latency_us: NonNegativeFloat = 100
    """Fixed time of one collective operation between nodes, in microseconds."""
    pass_overhead_ms: NonNegativeFloat = 0
    """Fixed time of one forward pass, in milliseconds: launches, sampling, Python."""
    row_overhead_ms: NonNegativeFloat = 0
    """Fixed time of each row (request) of a decode step, in milliseconds: sampling and Python."""
    layer_overhead_ms: NonNegativeFloat = 0
    """Time that the CPU needs to launch the kernels of one transformers layer in a forward pass, in milliseconds.
    0: the plan adds no time for launches and unfused operations, because `share_of_peak` includes this time."""
    update_overhead_ms: NonNegativeFloat = 0
    """Fixed time of one update, in milliseconds, in addition to its passes and memory traffic."""
    overlaps: bool = True
    """Whether sharded weights are gathered while the device computes. False: the device waits first, as on a CPU."""
    devices_per_node: PositiveInt
    price_per_hour: NonNegativeFloat | None = None
    """US dollars per device and hour. None: unknown."""
    price_note: str = ""
    """Source and date of the price."""

    def flops_per_s(self, number: Number) -> float:
        """Return the FLOP/s that training reaches. A data type without its own peak uses the peak of bf16."""
        return self.peak_flops_per_s(number) * self.share_of_peak

    def peak_flops_per_s(self, number: Number) -> float:
        """Return the peak in FLOP/s."""
        peaks = self.peak_tflops
        return 1e12 * (peaks.get(number) or peaks.get("bf16") or max(peaks.values()))

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that decoding reads from memory."""
        return 1e9 * self.memory_gb_s * self.share_of_bandwidth


class Fleet(NamedTuple):
    """A number of equal devices."""

    num_devices: int
    hardware: Hardware

    def __str__(self) -> str:
        return f"{self.num_devices}x{self.hardware.name}"


def parse_fleet(text: str, default: int = 1) -> Fleet:
    """Read `64xH100`, `H100` (`default` devices) or `8xpath/to/own.yaml`.

    Raises:
        ConfigError: the number is 0, or the hardware is unknown or invalid.
    """
    match = _FLEET.fullmatch(text.strip())
    if not match or (match[1] is not None and not int(match[1])):
        raise ConfigError.keyless(f"'{text}': expected a number and a device, such as 64xH100; {_names_end('')}")
    return Fleet(int(match[1] or default), load_hardware(match[2]))


def load_hardware(name: str) -> Hardware:
    """Read the hardware called `name` (upper or lower case), or the YAML file at the path `name`.

    Raises:
        ConfigError: there is no such hardware, or the file is invalid; the message lists all mistakes.
    """
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    known = _known()
    if found := known.get(_plain(name)):
        return _read(found)
    raise ConfigError.keyless(f"no hardware '{name}' (for your own hardware, pass a YAML file); {_names_end(name)}")


def hardware_in(text: str) -> str | None:
    """Return the known hardware whose name is one word, or two adjacent words, of a text; None if there is none.

    Example: h100 for `NVIDIA H100 80GB HBM3`.
    """
    words = [word.lower() for word in re.split(r"[\s_-]+", text)]
    pairs = map("".join, pairwise(words))
    return next((word for word in (*words, *pairs) if word in _known()), None)


def hardware_names() -> list[str]:
    """Return the names of the hardware files that are part of agentrl."""
    return sorted(_read(path).name for path in _known().values())


def _names_end(name: str) -> str:
    return suggestion(_plain(name), _known()).replace("valid:", "known devices:")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


@cache
def _known() -> dict[str, Path]:
    return {path.stem: path for path in shipped("configs/hardware").glob("*.yaml")}


def _read(path: Path) -> Hardware:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError.keyless(f"hardware '{path}': {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise ConfigError.keyless(f"hardware '{path}': expected keys and values, such as memory_gib: 80")
    try:
        return Hardware.model_validate(values)
    except ValidationError as error:
        raise ConfigError.keyless(*(_problem(path, dict(each)) for each in error.errors())) from None


def _problem(path: Path, problem: dict[str, object]) -> str:
    place = problem["loc"]
    key = ".".join(map(str, place if isinstance(place, tuple) else ()))
    near = f"; {suggestion(key, Hardware.model_fields)}" if problem["type"] == "extra_forbidden" else ""
    return f"hardware '{path}', '{key}': {problem['msg']}{near}"
