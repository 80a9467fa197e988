"""Ray actors: objects in other processes, usually on other nodes."""

from __future__ import annotations

from typing import Any, TypeAlias

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

Actor: TypeAlias = Any
"""The type is Any, because Ray's types know only methods with Ray's decorator. The methods of agentrl's actors do not
have the decorator, because their classes also work without Ray."""


def actor_in(group: PlacementGroup, index: int, kind: type, *arguments: object, max_concurrency: int = 1) -> Actor:
    """Return a new actor of the class `kind`, which gets all CPUs and GPUs of bundle `index` of `group`.

    `group` is a Ray placement group; for bundles, see `placement.Bundle`. The actor starts in the background. Ray never
    restarts the actor, because a restarted actor would have lost its state.
    """
    bundle = group.bundle_specs[index]
    options = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0), "max_concurrency": max_concurrency}
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    return actor_of(kind, *arguments, **options, scheduling_strategy=place)


def actor_of(kind: type, *arguments: object, **options: object) -> Actor:
    """Return a new actor of the class `kind` with the given Ray options; the actor starts in the background."""
    return ray.remote(kind).options(**options).remote(*arguments)


def result_of(call: Any) -> Any:  # Any: the result of any method
    """Wait until a call of an actor's method ends; return the method's result, or raise the error that it raised."""
    try:
        return ray.get(call)
    except RayTaskError as error:
        raise raised_by(error) from None


def raised_by(error: RayTaskError) -> BaseException:
    """Return the error that an actor's method raised; `error` is Ray's wrapper around that error."""
    return error.cause if isinstance(error.cause, BaseException) else error


def own_address() -> str:
    """Return the IP address of the node on which this process runs."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray has no type for it
