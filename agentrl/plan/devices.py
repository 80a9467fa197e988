"""The devices of a plan: their kind and number, and how many the trainer and the servers use."""

from __future__ import annotations

from agentrl.config.resolve import with_values
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind
from agentrl.plan.gpu import gpu_memory, gpu_name
from agentrl.plan.hardware import CPU, GIB, Fleet, hardware_in, load_hardware, parse_fleet
from agentrl.plan.layout import devices_of, layout_of, num_used, servers_of

MAX_ROLLOUTS, MAX_DEVICES = 200_000, 100_000
_SAME_MEMORY = 0.1
"""Largest accepted relative difference between a GPU's memory and the memory in the GPU's hardware file."""
_ARGS = "rollout.sglang.server_args"
_RAY_TYPE = "accelerator_type:"
"""Prefix of the resource name that Ray gives to a kind of GPU, such as `accelerator_type:H100`."""


def placed(text: str | None, config: RunConfig, of_run: str | None = None) -> tuple[Fleet, RunConfig]:
    """Return the devices of a plan, and the configuration with the sizes of all servers.

    Args:
        text: the value of `--gpus`, such as `64xH100`. Without a number, the plan has as many devices as the
            configuration uses. None: the kind of device comes from `actor.device=cpu`, else from
            `cluster.trainer_resources`, else from the saved run, else from this machine's GPU.
        of_run: name of the device of the saved run.

    Raises:
        ConfigError: the kind of device is missing or unknown, or the sizes of servers that run already are unknown.
    """
    servers = servers_of(config)
    named = text or _named(config) or hardware_in(of_run or "") or _of_this_machine()
    used = devices_of(layout_of(config), servers)
    if not named:
        raise ConfigError.keyless(
            "--gpus is missing, and neither cluster.trainer_resources nor this machine names a known GPU:"
            f" expected a number and a device, such as --gpus {used}xH100"
        )
    fleet = parse_fleet(named, used if servers.sized else 0)
    return fleet, config if servers.sized else _with_sizes(config, fleet)


def too_many(config: RunConfig, fleet: Fleet) -> str | None:
    """Return an error text if the configuration uses more devices than the fleet has; else None."""
    if num_used(config) <= fleet.num_devices:
        return None
    return f"the configuration uses {_uses(config)}, but the plan has {fleet}"


def is_divided(config: RunConfig, fleet: Fleet) -> bool:
    """Whether devices can be divided between training and rollouts: there are several GPUs, and the run does both."""
    both = config.algorithm.live and config.trainer.mode == "train"
    return both and fleet.num_devices > 1 and fleet.hardware.name != CPU


def refuse_huge(config: RunConfig) -> None:
    """Refuse a configuration that cannot be simulated in a reasonable time.

    Raises:
        ConfigError: there are too many rollouts or devices.
    """
    trainer, groups = config.trainer, config.data.train_batch_size
    rollouts = groups * config.group_size * (1 + trainer.max_staleness + trainer.over_sampling)
    limits = (rollouts, MAX_ROLLOUTS, "rollouts at a time"), (num_used(config), MAX_DEVICES, "devices")
    for number, most, what in limits:
        if number > most:
            raise ConfigError.keyless(f"the configuration has {number:.4g} {what}; the plan simulates up to {most:,}")


def _uses(config: RunConfig) -> str:
    servers, training = servers_of(config), layout_of(config).devices
    if servers.embedded:
        return f"{training} devices"
    each = servers.devices // servers.replicas
    how = "on the same devices" if servers.colocate else f"with {each} each"
    return f"{num_used(config)} devices ({training} for training, servers: {servers.replicas} {how})"


def _named(config: RunConfig) -> str | None:
    """Return the kind of device that the configuration names; None if it names none."""
    if config.actor.device == "cpu":
        return CPU
    names = [name.removeprefix(_RAY_TYPE) for name in config.cluster.trainer_resources if name != CPU]
    return next(filter(None, map(hardware_in, names)), None)


def _of_this_machine() -> str | None:
    """Return the kind of this machine's first GPU; None if it is unknown.

    Raises:
        ConfigError: the GPU's memory differs from the memory in its hardware file, for example on an A100 with 40 GB.
    """
    name, memory = gpu_name() or "", (gpu_memory() or 0) / GIB
    known = hardware_in(name)
    if known and memory and abs(memory / (expected := load_hardware(known).memory_gib) - 1) > _SAME_MEMORY:
        raise ConfigError.keyless(
            f"this machine's {name} has {memory:.0f} GiB, but configs/hardware/{known}.yaml is for {expected:g} GiB:"
            " pass your own YAML file with --gpus"
        )
    return known


def _with_sizes(config: RunConfig, fleet: Fleet) -> RunConfig:
    """Return the configuration with servers of equal size, which use all devices that training does not use."""
    servers, training = servers_of(config), layout_of(config).devices
    tensor, rest = divmod(fleet.num_devices - training, servers.replicas * servers.pipeline)
    if tensor < 1 or rest:
        stages = f" with {servers.pipeline} pipeline stages each" if servers.pipeline > 1 else ""
        room = max(0, fleet.num_devices - training)
        why = f"cannot divide the other {room} of {fleet} equally" if fleet.num_devices else "have unknown sizes"
        text = (
            f"`rollout.sglang.urls`: training uses {training} devices, and these {servers.replicas} servers{stages}"
            f" {why}: set {_ARGS}={{tp_size: N}}, or the number of all devices in --gpus"
        )
        raise ConfigError.at(_ARGS, Kind.MISSING, text)
    return with_values(config, {_ARGS: {**config.rollout.sglang.server_args, "tp_size": tensor}})
