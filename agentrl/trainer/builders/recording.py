"""Builds what `agentrl gateway` needs: engine, chat format, server, and the rollouts that are recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.chat.format import ChatFormat
from agentrl.chat.parsers.choice import format_of
from agentrl.chat.parsers.fit import make_parser
from agentrl.config import RunConfig
from agentrl.engines.base import Engine, load_engine
from agentrl.gateway.recording.rollouts import OpenedSession, OpenSession, RunningRollouts
from agentrl.gateway.recording.steps import StepFiles
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.session import Session
from agentrl.rollouts.generate_session import RolloutGenerate, completed
from agentrl.run_folder.provenance import check_vocabulary, provenance
from agentrl.store import TrajectoryStore
from agentrl.store.schema import TRAJECTORIES
from agentrl.trainer.builders.rollouts import load_chat, sampling_of
from agentrl.types.task import Task


@dataclass(frozen=True, slots=True)
class Recording:
    """A server that accepts requests, the rollouts that it records, and where they are saved."""

    server: GatewayServer
    rollouts: RunningRollouts
    store: TrajectoryStore
    engine: Engine


@asynccontextmanager
async def open_recording(config: RunConfig, host: str, port: int) -> AsyncIterator[Recording]:
    """Load the model and start the server. At the end, running rollouts are ended and saved.

    Raises:
        AgentRLError: the model, the engine, the port or the folder cannot be used as configured.
    """
    chat = load_chat(config)
    folder = config.trainer.run_dir / TRAJECTORIES / "train"
    store = TrajectoryStore(folder, provenance=provenance(chat.tokenizer, config, ()))
    if store.steps:
        check_vocabulary(store, folder, config.model)
    engine = await load_engine(config, chat)
    try:
        async with GatewayServer(host, port, model_name=config.model.path) as server:
            rollouts = RunningRollouts(
                session_opener(config, chat, engine),
                server,
                StepFiles(store, config.data.train_batch_size),
                group_size=config.group_size,
                max_running=config.trainer.max_concurrent_rollouts,
                seed=config.trainer.seed,
            )
            try:
                yield Recording(server, rollouts, store, engine)
            finally:
                await rollouts.end_all()
    finally:
        await engine.close()


def session_opener(config: RunConfig, chat: ChatFormat, engine: Engine) -> OpenSession:
    """Return the function that opens a session of the gateway, for a task and the seed of its rollout."""
    call_format = format_of(config.rollout.multi_turn.format, chat)
    parser = make_parser(call_format, chat)
    sampling = completed(sampling_of(config.rollout, "train"), chat, config.data.max_response_length)

    def opened(task: Task, seed: int) -> OpenedSession:
        generate = RolloutGenerate(engine, seed=seed)
        session = Session(chat, parser, config, generate, sampling, task, call_format=call_format)
        return OpenedSession(session, generate.release)

    return opened
