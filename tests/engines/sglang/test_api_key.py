from __future__ import annotations

import asyncio
from os import getpgid
from pathlib import Path

import pytest
import yaml
from sglang_server import START_S, new_server

from agentrl.config.rollout import SglangConfig
from agentrl.engines.sglang.api_key import key_of, keyed, write_key_file
from agentrl.engines.sglang.client import RefusedError, ServerClient
from agentrl.engines.sglang.servers.command import server_command, server_environment
from agentrl.errors import ConfigError


def test_a_started_server_has_a_key_that_no_argument_shows(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("tp-size: 2\n")
    rest, key = keyed({"dtype": "auto", "config": str(tmp_path / "own.yaml")})
    file = write_key_file(rest, key)
    try:
        assert key is not None
        assert len(key) > 40
        assert key != keyed({})[1]
        assert yaml.safe_load(file.read_text()) == {"tp-size": 2, "api-key": key}
        assert file.stat().st_mode & 0o077 == 0
        assert not any(key in word for word in server_command({**rest, "config": str(file)}, 1))
    finally:
        file.unlink()


def test_configured_api_key_is_not_in_the_process_arguments() -> None:
    assert keyed({"api_key": "mine", "tp_size": 2}) == ({"tp_size": 2}, "mine")
    rest, none = keyed({"api_key": None})
    file = write_key_file(rest, none)
    assert (none, yaml.safe_load(file.read_text())) == (None, {})
    file.unlink()


def test_the_key_of_running_servers_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "abcdefgh")
    assert key_of(SglangConfig()) is None
    assert key_of(SglangConfig(api_key_env="MY_KEY")) == "abcdefgh"
    with pytest.raises(ConfigError, match="has no 'OTHER'"):
        key_of(SglangConfig(api_key_env="OTHER"))


@pytest.mark.slow
@pytest.mark.sglang
def test_started_server_refuses_requests_without_the_key(sglang_model: Path, tmp_path: Path) -> None:
    import psutil  # installed with SGLang

    server = new_server(sglang_model, tmp_path / "server.log", api_key="a-key-of-this-test")
    server.start()
    try:
        asyncio.run(server.ready(START_S))
        assert asyncio.run(asked(server.url, None)) == "401"
        assert asyncio.run(asked(server.url, server.api_key)) == ""
        members = [each for each in psutil.process_iter() if getpgid(each.pid) == server.pid]
        open_to_all = {
            address.laddr.port
            for member in members
            for address in member.net_connections("tcp")
            if address.status == psutil.CONN_LISTEN and address.laddr.ip not in ("127.0.0.1", "::1")
        }
        assert len(open_to_all) <= 1  # torch's TCPStore: docs/security.md
        assert not any(server.api_key in word for member in members for word in member.cmdline())
    finally:
        asyncio.run(server.stop())


async def asked(url: str, api_key: str | None) -> str:
    client = ServerClient(url, api_key=api_key)
    try:
        await client.post("/flush_cache")
    except RefusedError as error:
        return "401" if " 401 " in str(error) else str(error)
    finally:
        await client.close()
    return ""


def test_gloo_listens_only_on_this_machine() -> None:
    assert server_environment({}, {})["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in server_environment({"nnodes": 2}, {})
    assert server_environment({}, {"GLOO_SOCKET_IFNAME": "eth0"})["GLOO_SOCKET_IFNAME"] == "eth0"
