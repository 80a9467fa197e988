"""docs/models.md equals the output of its script, and has every public template and every format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from public_templates import MISSING, NAMES

from agentrl.chat.parsers.names import tool_parsers
from agentrl.registry import load_module

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/models.md").read_text(encoding="utf-8")
FORMATS = ROOT / "tests/chat/parsers/parser_formats"
make_models = load_module(str(ROOT / "docs/make_models.py"))


@pytest.mark.skipif(not NAMES, reason=MISSING)
def test_models_page_is_up_to_date():
    assert make_models.page() == PAGE, "run `make reference`"


@pytest.mark.skipif(not NAMES, reason=MISSING)
def test_every_public_template_is_in_one_table():
    rows = [line.split("|")[1].strip() for line in PAGE.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in row.split(", ")]
    for template in NAMES:
        assert named.count(make_models._family(template)) == 1, template


def test_every_format_is_in_the_tables_and_has_tests():
    for name in tool_parsers.builtins():
        assert f"| `{name}` |" in PAGE
        assert (FORMATS / f"{re.sub(r'[.]', '_', name)}_format.py").is_file(), name
