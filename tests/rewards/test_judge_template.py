from __future__ import annotations

import pytest

from agentrl.errors import RewardError
from agentrl.rewards.judge.template import MAX_CHARACTERS, JudgeTemplate

NAMES = ("answer", "question")


@pytest.mark.parametrize(
    "text",
    [
        "{{ answer.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}{{ answer }}",
        "{{ self.__init__.__globals__ }}{{ answer }}",
        "{{ answer * 100000000 }}",
        "{{ 9 ** 999999999 }}{{ answer }}",
        "{% for i in range(1000000000) %}{{ answer }}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ answer }}{% endfor %}{% endfor %}",
        "{% for a in answer %}{{ 1 / 0 }}{% endfor %}",
    ],
)
def test_template_access_outside_the_sandbox_is_an_error(text: str) -> None:
    with pytest.raises(RewardError, match=r"reward\.judge\.prompt: "):
        JudgeTemplate(text, NAMES).render({"answer": "x" * 10, "question": "q"})


def test_ordinary_template_is_rendered() -> None:
    template = JudgeTemplate("{% if question %}{{ question | upper }}{% endif %}: {{ answer * 2 }}", NAMES)

    assert template.render({"answer": "ab", "question": "q"}) == "Q: abab"
    assert MAX_CHARACTERS > 1_000_000
