from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, JsonValue

from agentrl.config.base import Section
from agentrl.config.uses import PLACE, PLAIN, SECRET, Text, Use, code, mark_of
from agentrl.config.validate import config_fields


def test_every_key_declares_the_use_of_its_value() -> None:
    marks = {key: mark_of(field) for key, field in config_fields()}

    assert len(marks) > 250
    assert {mark.use for mark in marks.values()} == set(Use)
    assert marks["algorithm.adv_estimator"] == code("advantage estimator")
    assert marks["reward.judge.prompt"] == marks["reward.components"] == code()
    assert marks["reward.judge.cache_dir"] == marks["model.path"] == PLACE
    assert marks["rollout.sglang.env"] == SECRET
    assert marks["data.prompt_key"] == marks["rollout.temperature"] == PLAIN


class _Open(Section):
    text: str = ""
    path: Path | None = None
    options: dict[str, JsonValue] = Field(default_factory=dict)
    texts: tuple[str, ...] = ()
    anything: object = None


@pytest.mark.parametrize("name", _Open.model_fields)
def test_key_without_a_clear_use_mark_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="mark"):
        mark_of(_Open.model_fields[name])


class _Said(Section):
    text: Text | None = None
    number: int | float | None = None
    url: float | Annotated[str, PLACE] = 0.0
    twice: Annotated[str, PLACE] | Annotated[Path, SECRET] = ""


def test_use_of_a_union_is_that_of_its_most_powerful_type() -> None:
    fields = _Said.model_fields

    assert [mark_of(fields[name]) for name in ("text", "number", "url")] == [PLAIN, PLAIN, PLACE]
    with pytest.raises(TypeError, match="found 2"):
        mark_of(fields["twice"])
