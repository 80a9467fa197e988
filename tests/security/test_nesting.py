from __future__ import annotations

import pytest

from agentrl.security.json_depth import MAX_DEPTH, parse


@pytest.mark.parametrize("wrap", ["[{}]", '{{"a": {}}}'])
@pytest.mark.parametrize(("depth", "refused"), [(MAX_DEPTH, False), (MAX_DEPTH + 1, True), (100_000, True)])
def test_only_too_deep_nesting_is_refused(wrap, depth, refused):
    before, _, after = wrap.format("*").partition("*")
    text = before * depth + "1" + after * depth
    if not refused:
        assert parse(text) == parse(text.encode())
        return
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        parse(text)


def test_adjacent_brackets_do_not_count_as_nesting():
    assert parse("[" + ",".join(["[[]]"] * 500) + "]") == [[[]]] * 500
