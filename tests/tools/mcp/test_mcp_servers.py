"""Servers as they are written in JSON and YAML files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config.uses import Use, mark_of
from agentrl.errors import ConfigError
from agentrl.security.redaction import redacted_text
from agentrl.tools.mcp.entries import is_mcp, read_entry
from agentrl.tools.mcp.servers import McpServer, servers_of_file


@pytest.fixture
def servers(tmp_path):
    def read(**listed):
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": listed}))
        return servers_of_file(tmp_path / "servers.json")

    return read


def test_servers_of_other_clients_are_read(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("MCP_TEST_TOKEN", "a-token-of-a-server")
    monkeypatch.delenv("MCP_TEST_NONE", raising=False)
    started, reached, old, verl = servers(
        time={
            "command": "uvx",
            "args": ["mcp-server-time", 3],
            "env": {"A": "${MCP_TEST_NONE:-x}", "B": "${env:HOME}"},
        },
        web={"type": "streamable-http", "url": "https://x.org/mcp", "headers": {"X-Key": "k ${MCP_TEST_TOKEN}"}},
        off={"command": "x", "disabled": True},
        old={"url": "http://localhost:1/sse/", "autoApprove": []},
        verl={"url": "http://localhost:2/", "auth_token": "token-of-verl"},
    )
    home = Path.home()
    assert started == McpServer(
        name="time",
        kind="stdio",
        command="uvx",
        args=("mcp-server-time", "3"),
        env={"A": "x", "B": str(home)},
        cwd=tmp_path,
    )
    assert (reached.kind, reached.headers) == ("http", {"X-Key": "k a-token-of-a-server"})
    assert old.kind == "sse"
    assert (verl.kind, verl.headers) == ("sse", {"Authorization": "Bearer token-of-verl"})
    assert redacted_text("a-token-of-a-server token-of-verl") == "(redacted) (redacted)"


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp", "streamable_http"])
def test_http_has_several_names(servers, kind):
    (server,) = servers(a={"type": kind, "url": "http://x/sse"})
    assert server.kind == "http"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a server needs either 'command' or 'url'"),
        ({"command": "x", "url": "http://x"}, "a server needs either 'command' or 'url'"),
        ({"type": "http", "command": "x"}, "type 'http' does not go with 'command'"),
        ({"type": "stdio", "url": "http://x"}, "type 'stdio' does not go with 'url'"),
        ({"type": "websocket", "url": "http://x"}, "unknown type 'websocket'"),
        ({"url": "ftp://x"}, "'url': expected an address that begins with http:// or https://"),
        ({"url": "http:///mcp"}, "'url': expected an address"),
        ({"url": "http://x", "env": {"A": "b"}}, "'args', 'env' and 'cwd' need 'command'"),
        ({"command": "x", "headers": {"A": "b"}}, "'headers' and 'auth_token' need 'url'"),
        ({"command": "x", "arg": []}, "unknown key 'arg': did you mean 'args'?"),
        ({"command": ["x"]}, "'command': "),
        ({"command": "x", "timeout": 3}, "set 'timeout_s' in the YAML file"),
        ({"command": "${MCP_TEST_NONE}"}, "the environment variable MCP_TEST_NONE is not set"),
        (3, "expected an object, not 3"),
    ],
)
def test_mistakes_name_file_and_server(servers, tmp_path, given, message):
    with pytest.raises(ConfigError) as caught:
        servers(good={"command": "x"}, bad=given, worse=3)
    first, second = str(caught.value).split("\n")
    assert first.startswith(f"{tmp_path}/servers.json: server 'bad': ")
    assert message in first
    assert "server 'worse'" in second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "expected an object with the key 'mcpServers'"),
        ('{"servers": {}}', "expected an object with the key 'mcpServers'"),
        ('{"mcpServers": {}}', "no server is listed"),
        ('{"mcpServers": {"a": {"command": "x", "disabled": true}}}', "no server is listed"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, text, message):
    (tmp_path / "servers.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        servers_of_file(tmp_path / "servers.json")


def test_what_a_server_is_made_of_is_marked():
    uses = {name: mark_of(field).use for name, field in McpServer.model_fields.items()}
    assert {name for name, use in uses.items() if use == Use.CODE} == {"command", "args", "cwd"}
    assert {name for name, use in uses.items() if use == Use.SECRET} == {"env", "headers"}
    assert uses["url"] == Use.ADDRESS


VERL = {
    "class_name": "verl.tools.mcp_search_tool.MCPSearchTool",
    "config": {"rate_limit": 120, "timeout": 90, "type": "mcp"},
    "mcp": {"mcp_servers_config_path": "./servers.json", "tool_selected_list": ["search"]},
}


def test_the_entry_of_verl_is_mapped(servers, tmp_path):
    servers(a={"command": "x"})
    entry = read_entry(VERL, tmp_path)
    options = entry.options
    assert [server.name for server in entry.servers] == ["a"]
    assert (options.tools, options.timeout_s, options.rate_limit) == (("search",), 90, 120)
    assert (options.reading, options.sessions) == ("search_results", "rollout")
    plain = {**VERL, "class_name": "verl.tools.mcp_base_tool.MCPBaseTool", "config": {"type": "mcp"}}
    plain["mcp"] = {"mcp_servers_config_path": "servers.json", "tool_selected_list": {}}
    options = read_entry(plain, tmp_path).options
    assert (options.tools, options.timeout_s, options.rate_limit, options.reading) == ((), 30, None, "all")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_name": "my.tools.MyTool"}, "supports MCPBaseTool and MCPSearchTool, not 'my.tools.MyTool'"),
        ({"tool_schema": {}}, "unknown key 'tool_schema'"),
    ],
)
def test_other_entries_of_verl_are_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        read_entry({**VERL, **change}, tmp_path)


def test_a_server_file_of_verl_is_found_in_the_working_folder(servers, tmp_path, monkeypatch):
    servers(a={"command": "x"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    assert read_entry(VERL, tmp_path / "deep").servers[0].cwd == tmp_path


def test_entries_of_other_kinds_are_not_taken():
    assert is_mcp({"mcp": "a.json"})
    assert is_mcp({"class_name": "x.Y", "config": {"type": "mcp"}})
    assert not is_mcp({"class_name": "x.Y", "config": {"type": "native"}})
    assert not is_mcp({"name": "calculator"})
