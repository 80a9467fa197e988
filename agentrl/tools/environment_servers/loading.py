"""Loads the environment server that the configuration names, and asks it for its tools."""

from __future__ import annotations

import asyncio

from agentrl.concurrency.threads import DaemonExecutor, Workers
from agentrl.errors import ConfigError, Kind, Problem, problems_in
from agentrl.tools.environment_servers.base import EnvironmentServer, ServerFailedError
from agentrl.tools.environment_servers.bound import ServerEnvironment
from agentrl.tools.environment_servers.nemo_gym.server import reach_nemo_gym
from agentrl.tools.environment_servers.openenv.server import reach_openenv
from agentrl.tools.environment_servers.options import OpenEnvOptions, Options, read_options
from agentrl.utils.chat_endpoint import api_key_of

KEY = "rollout.multi_turn.environment"
_START = {
    "OpenEnv": "start it in the folder of the environment: uvicorn server.app:app --port PORT",
    "NeMo-Gym": "start it with ng_run, or with uvicorn",
}


def load_server(target: str, name: str) -> ServerEnvironment:
    """Return the environment of the server that `target` names. The server must be running.

    Raises:
        ConfigError: an option is wrong, or the server does not answer as expected.
    """
    try:
        options = read_options(target)
        api_key = api_key_of(options.api_key_env, f"{KEY}: 'api_key_env'")
    except ConfigError as error:
        raise ConfigError(*(Problem(KEY, Kind.WRONG_VALUE, f"`{KEY}`: {e.text}") for e in problems_in(error))) from None
    return ServerEnvironment(name, _reached(options, api_key))


def _reached(options: Options, api_key: str) -> EnvironmentServer:
    kind = "OpenEnv" if isinstance(options, OpenEnvOptions) else "NeMo-Gym"
    workers = Workers()
    try:
        # on another thread, because an event loop may already run on the current thread
        server: EnvironmentServer = DaemonExecutor(workers).submit(asyncio.run, _reach(options, api_key)).result()
    except ServerFailedError as error:
        text = f"`{KEY}`: the {kind} server at {options.url} cannot be used: {error}"
        raise ConfigError.at(KEY, Kind.OTHER, f"{text} ({_START[kind]})") from None
    finally:
        workers.close()
    return server


async def _reach(options: Options, api_key: str) -> EnvironmentServer:
    if isinstance(options, OpenEnvOptions):
        return await reach_openenv(options, api_key)
    return await reach_nemo_gym(options, api_key)
