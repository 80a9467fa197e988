"""The value of `rollout.multi_turn.environment` if it names a server: `openenv:URL`, `nemo_gym:URL` or a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, PositiveFloat, PositiveInt

from agentrl.config.base import Section
from agentrl.config.rollout import Url
from agentrl.config.uses import ADDRESS, PLACE, Text
from agentrl.errors import ConfigError, suggestion
from agentrl.utils.yaml_list import check_keys, entry_errors, read_mapping

KINDS = ("openenv", "nemo_gym")
_SHORT = re.compile(r"(?P<kind>[A-Za-z_-]+):(?P<url>(?:https?|wss?)://.*)")
_FILE = (".yaml", ".yml")


def _no_password(url: str) -> str:
    if "@" in url or "?" in url:
        raise ValueError("expected an address without a password and without a query: 'api_key_env' is for keys")
    return url


ServerUrl = Annotated[Url, AfterValidator(_no_password)]


class ServerOptions(Section):
    """Options that all servers have."""

    api_key_env: Annotated[str, ADDRESS] | None = None
    """Environment variable with the key that is sent as bearer token."""
    start_timeout_s: PositiveFloat = 30.0
    """Timeout in seconds of one attempt to start the environment of a rollout."""
    deterministic: bool = False
    """Whether the same actions get the same answers."""


class OpenEnvOptions(ServerOptions):
    """A server of OpenEnv."""

    openenv: ServerUrl
    max_sessions: PositiveInt = 1
    """Maximum number of rollouts that use the server at the same time; further rollouts wait."""
    tool: Text = "step"
    """Name of the tool whose arguments are the fields of the server's action."""
    description: Text | None = None
    """Description of this tool; null: the server's description of the action."""
    observation: Text | None = None
    """Field of the observation that the model reads. null: the model reads all fields as JSON; if the observation has
    only one field and it is a text, the model reads this text."""
    reward: Literal["sum", "last"] = "sum"
    """Reward of a rollout: the sum of the rewards of all steps, or the reward of the last step."""
    reset: tuple[Text, ...] = ()
    """Columns of the row that are sent when a rollout starts."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.openenv


class NemoGymOptions(ServerOptions):
    """A resources server of NeMo-Gym."""

    nemo_gym: ServerUrl
    max_sessions: PositiveInt = 64
    """Maximum number of rollouts that use the server at the same time; further rollouts wait."""
    tools: Annotated[Path, PLACE] | None = None
    """File with the schemas of the server's tools: JSONL rows, or a JSON list. null: the server has no tools."""
    verify_timeout_s: PositiveFloat = 300.0
    """Maximum seconds until the server has verified a rollout."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.nemo_gym


Options = OpenEnvOptions | NemoGymOptions
_MODELS: dict[str, type[OpenEnvOptions] | type[NemoGymOptions]] = {
    "openenv": OpenEnvOptions,
    "nemo_gym": NemoGymOptions,
}


def server_name(target: str) -> str | None:
    """Return the environment's name if `target` names a server, else None.

    The name is the server's kind, or the name of the YAML file without its ending.
    """
    if target.endswith(_FILE):
        return Path(target).stem
    return short["kind"] if (short := _SHORT.fullmatch(target)) else None


def read_options(target: str) -> Options:
    """Return the options of the server that `target` names.

    Raises:
        ConfigError: the file or a key is wrong.
    """
    if short := _SHORT.fullmatch(target):
        with entry_errors(f"'{target}'"):
            return _options({short["kind"]: short["url"]})
    path = Path(target)
    with entry_errors(str(path)):
        options = _options(read_mapping(path))
        if isinstance(options, NemoGymOptions) and options.tools is not None:
            tools = path.parent / options.tools.expanduser()
            if not tools.is_file():
                raise ConfigError.keyless(f"'tools': there is no file '{tools}'")
            options = options.model_copy(update={"tools": tools})
    return options


def _options(given: dict[str, object]) -> Options:
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        hint = suggestion(next(iter(given), ""), KINDS)
        raise ConfigError.keyless(f"expected the address of one server under 'openenv' or 'nemo_gym': {hint}")
    model = _MODELS[kinds[0]]
    check_keys(given, model.model_fields)
    return model.model_validate(given)
