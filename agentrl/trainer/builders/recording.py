"""Builds the components of `agentrl gateway`: engine, chat format, server, and the recording of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from typing import NamedTuple

from agentrl.algos.build import build_algorithm
from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import format_of
from agentrl.chat.parsers.fit import make_parser
from agentrl.config import RunConfig
from agentrl.engines.base import Engine, load_engine
from agentrl.errors import ConfigError, Kind
from agentrl.gateway.recording.rollouts import OpenedSession, OpenSession, RunningRollouts
from agentrl.gateway.recording.routes import RolloutRoutes
from agentrl.gateway.recording.shared import SharedSession
from agentrl.gateway.recording.steps import StepFiles
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.session import Session
from agentrl.rollouts.generate_session import RolloutGenerate, completed
from agentrl.run_folder.location import shown
from agentrl.run_folder.provenance import VOCABULARY, provenance
from agentrl.store import TrajectoryStore
from agentrl.store.schema import RECORDED, TRAJECTORIES
from agentrl.trainer.builders.rollouts import load_chat, sampling_of
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample
from agentrl.types.task import Task


class Keys(NamedTuple):
    """API keys of the gateway. For an empty key, a new key is generated."""

    shared: str = ""
    admin: str = ""


NEW_KEYS = Keys()


@dataclass(frozen=True, slots=True)
class Recording:
    """A gateway that accepts requests and records rollouts.

    Attributes:
        shared_key: key for all conversations that have no key of their own; "" if groups have several rollouts.
        admin_key: key for the requests that open or end rollouts.
        failed: future that raises the error if a file cannot be written.
    """

    server: GatewayServer
    rollouts: RunningRollouts
    shared_key: str
    admin_key: str
    failed: asyncio.Future[None]


@asynccontextmanager
async def open_recording(config: RunConfig, host: str, port: int, keys: Keys = NEW_KEYS) -> AsyncIterator[Recording]:
    """Load the model and start the server. At the end, running rollouts are ended and saved.

    Raises:
        AgentRLError: the model, the engine, the port or the folder cannot be used as configured.
    """
    chat = load_chat(config)
    folder = config.trainer.run_dir / TRAJECTORIES / "train"
    made_with = {**provenance(chat.tokenizer, config, ()), RECORDED: "true"}
    store = TrajectoryStore(folder, provenance=made_with)
    _check_continues(store, folder, made_with)
    files = StepFiles(store, config.data.train_batch_size, samples_of(config))
    async with AsyncExitStack() as stack:
        engine = await load_engine(config, chat)
        stack.push_async_callback(engine.close)
        server = await stack.enter_async_context(GatewayServer(host, port, model_name=config.model.path))
        rollouts = RunningRollouts(
            session_opener(config, chat, engine),
            server,
            files,
            group_size=config.group_size,
            max_running=config.trainer.max_concurrent_rollouts,
            seed=config.trainer.seed,
        )
        stack.push_async_callback(rollouts.end_all)
        shared = server.open(SharedSession(rollouts), keys.shared) if config.group_size == 1 else None
        if shared is not None:
            stack.push_async_callback(server.close, shared)
        yield _recording(server, rollouts, shared.key if shared else "", keys)


def _recording(server: GatewayServer, rollouts: RunningRollouts, shared_key: str, keys: Keys) -> Recording:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    admin = keys.admin or token_urlsafe(32)

    def on_failure(error: OSError) -> None:
        if not failed.done():
            failed.set_exception(error)

    server.first = RolloutRoutes(rollouts, admin, on_failure)
    return Recording(server, rollouts, shared_key, admin, failed)


def _check_continues(store: TrajectoryStore, folder: Path, made_with: Mapping[str, str]) -> None:
    """Refuse a folder that has rollouts of a training run, or rollouts of another tokenizer."""
    kept = store.provenance(store.steps[-1]) if store.steps else made_with
    if RECORDED not in kept:
        raise _cannot_continue(folder, "has rollouts that `agentrl gateway` did not record")
    if kept[VOCABULARY] != made_with[VOCABULARY]:
        raise _cannot_continue(folder, "has rollouts of another tokenizer")


def _cannot_continue(folder: Path, why: str) -> ConfigError:
    key = "trainer.default_local_dir"
    return ConfigError.at(key, Kind.CONFLICT, f"`{key}`: '{shown(folder)}' {why}: name a new folder")


def samples_of(config: RunConfig) -> Callable[[Sequence[Group]], Sequence[Sample]]:
    """Return a function that computes a step's samples, or returns no samples if the estimator needs model scores."""
    algorithm = build_algorithm(config)
    if algorithm.credits_by_scores:
        return lambda groups: ()
    return lambda groups: algorithm.credit(groups, algorithm.samples(groups))


def session_opener(config: RunConfig, chat: ChatFormat, engine: Engine) -> OpenSession:
    """Return the function that opens a gateway session for a task and a rollout seed."""
    call_format = format_of(config.rollout.multi_turn.format, chat)
    parser = make_parser(call_format, chat)
    sampling = completed(sampling_of(config.rollout, "train"), chat, config.data.max_response_length)

    def opened(task: Task, seed: int) -> OpenedSession:
        generate = RolloutGenerate(engine, seed=seed)
        session = Session(chat, parser, config, generate, sampling, task, call_format=call_format)
        return OpenedSession(session, generate.release)

    return opened
