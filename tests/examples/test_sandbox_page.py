"""docs/tools.md and docs/sandboxes.md: their files load, and their tables have every setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.sandboxes.docker.settings import DockerSandbox, PodmanSandbox
from agentrl.sandboxes.e2b.settings import E2BSandbox
from agentrl.sandboxes.loading import SANDBOXES
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.sandboxes.sandbox_fusion.settings import FusionSandbox
from agentrl.sandboxes.settings import PoolSettings
from agentrl.tools.loading import tools_of
from agentrl.tools.sandbox_tools import SANDBOX_TOOLS

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = [
    ("Local", LocalSandbox),
    ("E2B", E2BSandbox),
    ("Docker and Podman", DockerSandbox),
    ("Docker and Podman", PodmanSandbox),
    ("Sandbox Fusion", FusionSandbox),
]
PAGE = (DOCS / "sandboxes.md").read_text()


def section(title: str) -> str:
    """The text of a kind; of the beginning of the page for ""."""
    parts = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))
    return parts[title] if title else PAGE.partition("\n## ")[0]


def keys(text: str) -> set[str]:
    """The names in the first column of the tables of keys."""
    tables = re.findall(r"^\| key \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return {
        name for table in tables for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }


@pytest.mark.parametrize("page", ["tools.md", "sandboxes.md"])
def test_the_files_of_the_page_load(page, tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    for text in blocks:
        (tmp_path / "tools.yaml").write_text(text)
        assert all(tool.name in SANDBOX_TOOLS for tool in tools_of(tmp_path / "tools.yaml"))


def test_every_kind_is_on_the_page():
    rows = section("").partition("| kind |")[2].partition("\n\n")[0].splitlines()
    assert sorted(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows[2:]))) == SANDBOXES.builtins()


@pytest.mark.parametrize(("title", "settings"), SETTINGS)
def test_every_setting_of_a_kind_is_in_its_table(title, settings):
    own = settings.model_fields.keys() - PoolSettings.model_fields.keys() - {"kind"}
    assert own <= keys(section(title)) <= settings.model_fields.keys()
    assert keys(section("")) == PoolSettings.model_fields.keys() - {"kind"}


@pytest.mark.parametrize(("title", "settings"), SETTINGS)
def test_the_numbers_of_the_tables_are_the_defaults(title, settings):
    for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", section(title), flags=re.MULTILINE):
        assert settings.model_fields[name].default == float(value)
