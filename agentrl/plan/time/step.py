"""Seconds of each phase of a step, predicted separately."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from agentrl.config.run import RunConfig
from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import Layout, Servers, devices_of, servers_of
from agentrl.plan.lengths import Lengths, RolloutLengths
from agentrl.plan.shapes import Shape
from agentrl.plan.split.replica import EngineSpeed
from agentrl.plan.split.setting import Setting
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import max_running, sampling_of
from agentrl.plan.time.training import BYTES, Training
from agentrl.types.sample import Sample

SHARED = (2.7, 1.1)
"""Factors by which trainer and embedded engine are slower while both compute at the same time. Trainer and engine share
a device and an interpreter, and the many short operations of the engine delay the trainer. The factors were measured
with the quickstart on two CPU cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step by phase.

    Attributes:
        rollout_s: from the start of a step's rollouts to the end of the last one, if no other rollouts run.
        score_s: forward passes before the update.
        learn_s: the update.
        publish_s: sending the weights to the engine.
        tokens: tokens of the trained trajectories.
        sampled: tokens that the model samples.
        price: US dollars of the step if phases follow one another; None: the price of the hardware is unknown.
    """

    rollout_s: float
    score_s: float
    learn_s: float
    publish_s: float
    tokens: float
    sampled: float
    price: float | None = None

    @property
    def serial_s(self) -> float:
        """Seconds of a step whose phases follow one another (`trainer.max_staleness=0`)."""
        return self.rollout_s + self.score_s + self.learn_s + self.publish_s

    @property
    def bottleneck(self) -> str:
        """The longest phase."""
        phases = {name: value for name, value in asdict(self).items() if name.endswith("_s")}
        return max(phases, key=lambda name: phases[name]).removesuffix("_s")


def predict(
    shape: Shape,
    layout: Layout,
    hardware: Hardware,
    lengths: Lengths,
    config: RunConfig,
    *,
    engine: EngineSpeed | None = None,
    max_kv_tokens: float = math.inf,
    rollout_s: float | None = None,
    sent_s: float | None = None,
) -> StepTime:
    """Predict the seconds of each phase of a step, as if no other phase ran at the same time.

    Args:
        hardware: hardware of the trainer, and of the engine if `engine` is None.
        max_kv_tokens: largest number of tokens in the KV cache of a replica.
        rollout_s: seconds of the rollouts; None: they are simulated.
        sent_s: seconds of publishing; None: they are predicted.
    """
    servers = servers_of(config)
    alone = setting_of(config, servers, max_kv_tokens=max_kv_tokens, max_staleness=0, over_sampling=0.0)
    if rollout_s is None:
        speed = engine or sampling_of(config, shape, servers, hardware)
        rollout_s = simulate(lengths, speed, Instant(), alone).step_s
    if sent_s is None:
        sent_s = publish_s(shape, layout, servers, hardware, hardware)
    work = _trained(Training(shape, layout, hardware, passes_of(config)), lengths, config, alone.num_steps)
    found = StepTime(rollout_s=rollout_s, publish_s=sent_s if config.algorithm.live else 0.0, **work)
    hourly = hourly_price(layout, servers, hardware)
    return replace(found, price=None if hourly is None else hourly * found.serial_s / 3600)


def _trained(trainer: Training, lengths: Lengths, config: RunConfig, num_steps: int) -> dict[str, float]:
    """Return means over the first `num_steps` steps: seconds of scoring and learning, and numbers of tokens."""
    samples = [samples_of(lengths, config, step) for step in range(num_steps)]
    planned = [each for step in range(num_steps) for each in planned_of(lengths, config, step)]
    return {
        "score_s": statistics.fmean(map(trainer.score_s, samples)),
        "learn_s": statistics.fmean(map(trainer.learn_s, samples)),
        "tokens": sum(each.num_tokens for each in planned) / num_steps,
        "sampled": sum(each.num_sampled for each in planned) / num_steps,
    }


class Instant:
    """A trainer that takes no time."""

    def score_s(self, samples: Sequence[Sample]) -> float:
        """Return 0."""
        return 0.0

    def learn_s(self, samples: Sequence[Sample]) -> float:
        """Return 0."""
        return 0.0


def planned_of(lengths: Lengths, config: RunConfig, step: int) -> list[RolloutLengths]:
    """Return the lengths of the rollouts of a step."""
    groups, size = config.data.train_batch_size, config.group_size
    return [each for number in range(groups) for each in lengths.group(step * groups + number, size)]


def samples_of(lengths: Lengths, config: RunConfig, step: int) -> list[Sample]:
    """Return the samples of a step. They contain only token positions, and the ids of tasks and rollouts."""
    share = passes_of(config).shares_prompts
    return [
        sample
        for number, planned in enumerate(planned_of(lengths, config, step))
        for sample in planned.samples(str(number), str(number // config.group_size), share=share)
    ]


def setting_of(
    config: RunConfig, servers: Servers, *, max_kv_tokens: float = math.inf, publish_s: float = 0.0, **changes: object
) -> Setting:
    """Return the setting of the simulation for a configuration; `changes` replace fields of the setting."""
    values: dict[str, object] = {
        "groups_per_step": config.data.train_batch_size,
        "group_size": config.group_size,
        "max_staleness": config.trainer.max_staleness,
        "over_sampling": config.trainer.over_sampling,
        "num_replicas": servers.replicas * servers.data,
        "max_running": max_running(config, servers),
        "max_kv_tokens": max_kv_tokens,
        "shares_prompts": passes_of(config).shares_prompts,
        "max_concurrent": config.trainer.max_concurrent_rollouts,
        "publish_s": publish_s,
        "recompute": config.rollout.weight_update_mode == "retract",
        "exclusive": servers.colocate and not servers.embedded,
        "contention": SHARED if servers.embedded else (1.0, 1.0),
    }
    return Setting(**{**values, **changes})  # type: ignore[arg-type]  # the keys are the fields of Setting


def publish_s(shape: Shape, layout: Layout, servers: Servers, hardware: Hardware, of_engine: Hardware) -> float:
    """Return the seconds to send all weights, tensor by tensor, so that every device receives every byte.

    The weights are sent over the link of the node if all devices fit into one node, else over the network. The embedded
    engine reads the weights from memory.
    """
    size = shape.weights.total * BYTES["bf16"]
    if servers.embedded:
        return size / (1e9 * hardware.memory_gb_s)
    if devices_of(layout, servers) <= hardware.devices_per_node:
        return size / (1e9 * hardware.link_gb_s)
    return size / (1e9 * min(hardware.network_gb_s, of_engine.network_gb_s))


def hourly_price(layout: Layout, servers: Servers, hardware: Hardware) -> float | None:
    """Return the price of all devices per hour, in US dollars; None if the hardware has no price."""
    price = hardware.price_per_hour
    return None if price is None else price * devices_of(layout, servers)
