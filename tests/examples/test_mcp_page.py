"""docs/mcp.md: its files can be read, and its tables are those of the code."""

from __future__ import annotations

import re

import pytest
import yaml
from reader import ROOT, blocks_of

from agentrl.telemetry.metrics import find_metric
from agentrl.tools.mcp import entries, health, schemas, session
from agentrl.tools.mcp.connections import McpConnections
from agentrl.tools.mcp.entries import McpOptions, read_entry
from agentrl.tools.mcp.servers import McpServer

PAGE = ROOT / "docs/mcp.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def page_entries(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCH_TOKEN", "a-token-of-the-page")
    (servers,) = [block.text for block in blocks_of(PAGE) if block.language == "json"]
    (tmp_path / "servers.json").write_text(servers)
    listings = [yaml.safe_load(block.text)["tools"] for block in blocks_of(PAGE) if block.language == "yaml"]
    return [read_entry(entry, tmp_path) for listing in listings for entry in listing]


def test_files_of_the_page_are_read(page_entries):
    names = [[server.name for server in entry.servers] for entry in page_entries]
    assert names == [["time", "search"], ["time", "search"], ["files"], ["search"], ["time", "search"]]
    assert page_entries[0].servers[1].headers == {"Authorization": "Bearer a-token-of-the-page"}


def column(heading):
    """The names in the first column of the table under a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}


def test_tables_name_every_key():
    assert column("Entries of the YAML file") == McpOptions.model_fields.keys() - {"reading"}
    given = McpServer.model_fields.keys() - {"name", "kind"} | {"type", "auth_token", "disabled"}
    assert column("Servers") == given
    metrics = {f"tools/{name}" for name in McpConnections(()).metrics()}
    assert column("Metrics") == metrics == {name for name in metrics if find_metric(name)}


def test_limits_are_those_of_the_code():
    assert f"{health.MAX_MESSAGE_BYTES // 2**20} MiB" in TEXT
    assert f"{health.MAX_UNASKED:,} in a row" in TEXT
    assert f"{schemas.MAX_DESCRIPTION_CHARS:,} characters" in TEXT
    assert f"{schemas.MAX_SCHEMA_BYTES // 2**10} KiB of JSON, {schemas.MAX_DEPTH} levels" in TEXT
    assert f"{schemas.MAX_NODES:,} nodes" in TEXT
    assert f"{session.MAX_TOOLS:,} tools, listed in at most {session.MAX_PAGES} pages" in TEXT
    assert f"| `max_sessions` | {entries.MAX_SESSIONS} |" in TEXT
