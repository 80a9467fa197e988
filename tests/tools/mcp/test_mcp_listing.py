"""What servers offer at the start of a run, and what is refused."""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from mcp_builders import load, raw, run
from tool_builders import call

from agentrl.errors import ConfigError
from agentrl.tools.mcp import loading, stdio
from agentrl.types.rollout import Outcome


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(stdio, "GRACE_S", 0.2)


def offering(*tools, **keys):
    """The hand-written server with these tools."""
    entry = raw(**keys)
    entry["mcp"]["env"] = {"OFFERED": json.dumps([*tools])}
    return entry


def echo(name="echo", description="d", **schema):
    return {"name": name, "description": description, "inputSchema": {"type": "object", **schema}}


def refused(folder, *entries):
    with pytest.raises(ConfigError) as caught:
        load(folder, *entries)
    return str(caught.value)


def test_all_pages_of_the_tools_are_read(tmp_path):
    names = [tool.name for tool in load(tmp_path, raw("pages"))]
    assert names == [tool.name for tool in load(tmp_path, raw())]
    assert len(names) > 20


def test_tools_are_selected_in_the_order_of_the_server_and_get_a_prefix(tmp_path):
    tools = load(tmp_path, raw(tools=["count", "echo"], prefix="raw_"))
    assert [tool.name for tool in tools] == ["raw_echo", "raw_count"]
    results, _ = run(tools, call("raw_echo", a=1))
    assert results[0].text == '{"a": 1}'


def test_entries_of_several_servers_keep_the_order_of_the_file(tmp_path):
    tools = load(tmp_path, raw(tools=["count"]), {"name": "calculator"}, raw(tools=["echo"], prefix="b."))
    assert [tool.name for tool in tools] == ["count", "calculator", "b.echo"]
    results, metrics = run(tools, call("count"), call("b.echo"), call("calculator", expression="1+1"))
    assert [result.text for result in results] == ["1", "{}", "2"]
    assert metrics["mcp_sessions_opened"] == 2  # counted once for all tools


def test_the_description_and_the_schema_of_the_server_are_kept(tmp_path):
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "arguments",
        "properties": {"city": {"title": "City", "type": "string", "pattern": "^[A-Z]"}},
        "required": ["city"],
    }
    (tool,) = load(tmp_path, offering(echo(description="The weather.", **schema)))
    assert tool.schema.function.description == "The weather."
    assert tool.schema.function.parameters == {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}},
        "required": ["city"],
    }


def test_arguments_are_checked_before_the_call_without_patterns_and_references(tmp_path):
    schema = {
        "properties": {
            "n": {"type": "integer", "maximum": 3},
            "kind": {"enum": ["a", "b"]},
            "slow": {"type": "string", "pattern": "^(a+)+$"},
            "node": {"$ref": "#/$defs/node"},
            "either": {"oneOf": [{"$ref": "#/$defs/node"}, {"type": "string", "pattern": "x"}]},
        },
        "required": ["n"],
        "additionalProperties": False,
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    tools = load(tmp_path, offering(echo(**schema)))
    good = {"n": 1, "slow": "a" * 50 + "!", "node": {"next": {}}, "either": "text"}
    results, _ = run(
        tools,
        call("echo", **good),
        *(call("echo", **{"n": 1, **wrong}) for wrong in ({"n": 4}, {"n": "1"}, {"kind": "c"}, {"other": 1})),
        call("echo"),
    )
    assert json.loads(results[0].text) == good
    assert [result.outcome for result in results[1:]] == [Outcome.FORMAT_ERROR] * 5


def test_a_schema_of_an_older_draft_is_offered(tmp_path):
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "integer"}]},
            "n": {"minimum": 0, "exclusiveMinimum": True},
        },
    }
    (result,), _ = run(load(tmp_path, offering(echo(**schema))), call("echo", pair=[1, "a"]))
    assert result.outcome == Outcome.OK


def bomb(levels):
    """A schema whose size doubles with every level of references."""
    names = [f"l{level}" for level in range(levels)]
    doubled = {name: {"allOf": [{"$ref": f"#/$defs/{below}"}] * 2} for name, below in pairwise(names)}
    return {"properties": {"a": {"$ref": "#/$defs/l0"}}, "$defs": {**doubled, names[-1]: {"type": "string"}}}


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return {"properties": {"a": schema}}


def chain(length):
    links = {f"c{number}": {"$ref": f"#/$defs/c{number + 1}"} for number in range(length)}
    return {"properties": {"a": {"$ref": "#/$defs/c0"}}, "$defs": {**links, f"c{length}": {}}}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (echo("a b"), "the name 'a b' must have"),
        (echo("<|im_end|>"), "the name '<|im_end|>' must have"),
        (echo("x" * 65), "must have 1 to 64"),
        (echo(""), "the name '' must have"),
        (echo(description="x" * 8193), "its description has 8193 characters, at most 8192"),
        (echo(properties={"a": {"description": "x" * 2**16}}), "bytes, at most 65536"),
        (echo(**deep(40)), "nested more than 32 levels"),
        (echo(**bomb(20)), "more than 10000 nodes"),
        (echo(**chain(500)), "more than 32 levels of references"),
        (echo(properties={"a": {"$ref": "https://example.com/s.json"}}), "'https://example.com/s.json', which is not"),
        (echo(properties={"a": {"$ref": "#/$defs/none"}}), "'#/$defs/none', which is not inside"),
        (echo(properties={"a": {"type": "text"}}), "its schema is invalid at properties.a.type"),
        (echo(required=["a", "a"]), "its schema is invalid at required"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_named(tmp_path, tool, message):
    text = refused(tmp_path, offering(tool, echo("good")))
    assert text.startswith(f"{tmp_path}/tools.yaml: tools[0]: MCP server 'raw', tool '{tool['name'][:100]}': ")
    assert message in text
    assert "\n" not in text
    assert [each.name for each in load(tmp_path, offering(tool, echo("good"), tools=["good"]))] == ["good"]


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": "object", "properties": []}, "object", None])
def test_a_listing_that_violates_the_protocol_is_refused(tmp_path, schema):
    text = refused(tmp_path, offering({"name": "echo", "inputSchema": schema}))
    assert "MCP server 'raw': it did not list its tools: ValidationError" in text
    assert "inputSchema" in text


def test_a_tool_that_is_listed_twice_is_named(tmp_path):
    text = refused(tmp_path, offering(echo(), echo(), echo("good")))
    assert text == f"{tmp_path}/tools.yaml: tools[0]: MCP server 'raw', tool 'echo': it is listed 2 times"


def test_a_page_with_too_many_tools_is_refused(tmp_path):
    text = refused(tmp_path, raw("crowd"))
    assert "it has more than 1000 tools, or more than 100 pages of them" in text


def test_recursive_schemas_are_offered(tmp_path):
    schema = {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/properties/c/items"}, "c": {"items": {}}}}
    (tool,) = load(tmp_path, offering(echo(**schema)))
    assert tool.schema.function.parameters["properties"]["a"] == {"$ref": "#"}


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("exits", "it did not start; it ended with status 1; its error output ends: the key is"),
        ("sleeps", "it did not start: it did not answer within 0.5 s"),
        (
            "chatters",
            "it sent 10000 messages in a row that answer no request; its output has lines that are not messages: this",
        ),
        ("endless", "it has more than 1000 tools, or more than 100 pages of them"),
        ("nonsense", "it did not list its tools: ValidationError"),
        ("none", "has no tools"),
    ],
)
def test_a_server_that_does_not_start_is_named_with_the_reason(tmp_path, start, reason):
    text = refused(tmp_path, raw(start, start_timeout_s=0.5 if start == "sleeps" else 20))
    assert text.startswith(f"{tmp_path}/tools.yaml: tools[0]: MCP server 'raw'")
    assert reason in text
    assert "\n" not in text


def test_broken_servers_are_reported_together(tmp_path):
    missing = {"mcp": {"name": "missing", "command": "no-such-command-7"}}
    folder = {"mcp": {"name": "folder", "command": sys.executable, "cwd": "none"}}
    nobody = {"mcp": {"name": "nobody", "url": "http://127.0.0.1:9/mcp"}}
    lines = refused(tmp_path, raw("exits"), missing, folder, nobody, raw()).split("\n")
    assert [line.partition(": it did not start")[0].partition(": ")[2] for line in lines] == [
        "tools[0]: MCP server 'raw'",
        "tools[1]: MCP server 'missing'",
        "tools[2]: MCP server 'folder'",
        "tools[3]: MCP server 'nobody'",
    ]
    assert "there is no command 'no-such-command-7'" in lines[1]
    assert f"the working folder '{tmp_path}/none' does not exist" in lines[2]
    assert "ConnectError" in lines[3]


def test_secrets_are_not_in_messages(tmp_path, monkeypatch):
    monkeypatch.setenv("MCP_TEST_TOKEN", "SECRET-VALUE-1")
    entry = raw("exits")["mcp"]
    servers = {
        "mcpServers": {"raw": {**{k: v for k, v in entry.items() if k != "name"}, "env": {"T": "${MCP_TEST_TOKEN}"}}}
    }
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    text = refused(tmp_path, {"mcp": "servers.json"})
    assert "the key is missing: (redacted)" in text
    assert "SECRET" not in text


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([raw(tools=["ecko"])], "tools[0]: MCP server 'raw' has no tool 'ecko': did you mean 'echo'?"),
        ([raw(tools=["echo"]), raw(tools=["echo"])], "tools[1]: the name 'echo' is used by another tool: set 'prefix'"),
        ([raw(tool=["echo"])], "tools[0]: unknown key 'tool': did you mean 'tools'?"),
        ([raw(sessions="own")], "tools[0]: 'sessions': "),
        ([raw(sessions="shared", max_sessions=3)], "'max_sessions' has no effect with 'sessions: shared'"),
        ([raw(timeout_s=0)], "'timeout_s': "),
        ([{"mcp": {"command": "x"}}], "'mcp': a server needs a 'name'"),
        ([{"mcp": "none.json"}], "there is no file 'none.json'"),
        ([{"mcp": 3}], "tools[0]: 'mcp"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, entries, message):
    assert message in refused(tmp_path, *entries)


def test_mistakes_of_all_entries_are_reported_together_and_no_server_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.tools.mcp.loading._listed", None)
    text = refused(tmp_path, raw(tool=[]), raw(), {"mcp": "none.json"})
    assert [line.split(": ")[1] for line in text.split("\n")] == ["tools[0]", "tools[2]"]


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    assert "MCP servers need the package mcp: pip install 'agentrl-train[mcp]'" in refused(tmp_path, raw())


def test_tools_can_be_loaded_while_an_event_loop_runs(tmp_path):
    async def main():
        return load(tmp_path, raw(tools=["echo"]))

    assert [tool.name for tool in asyncio.run(main())] == ["echo"]


def test_a_server_without_a_promise_is_not_reproducible(tmp_path):
    from agentrl.tools.toolbox import Toolbox

    tools = load(tmp_path, raw(tools=["echo"]), raw(tools=["count"], deterministic=True))
    assert {name: tool.deterministic for name, tool in Toolbox(tools).tools.items()} == {"echo": False, "count": True}


@pytest.mark.slow
def test_the_shipped_file_offers_the_tool_of_the_calculator_task(monkeypatch):
    from agentrl.tools.function import as_tool
    from agentrl.tools.loading import tools_of

    root = Path(__file__).parents[3]
    monkeypatch.syspath_prepend(str(root / "examples/calculator"))
    from tool import calculator

    tools = [*tools_of(root / "configs/tool_config/mcp.yaml")]
    assert [tool.schema for tool in tools] == [as_tool(calculator).schema]
    results, _ = run(tools, *(call("calculator", expression=each) for each in ("3*4", "2-5", "1/0")))
    assert [result.text for result in results] == ["12", "-3", "error"]
