"""Simulated users that fail, or cannot be loaded."""

from __future__ import annotations

import pytest

HEAD = "from agentrl.interactions.base import BaseInteraction\n\n"
ANSWER = (
    "class User(BaseInteraction):\n    {kind} generate_response(self, instance_id, messages, **row):\n        {body}\n"
)


def user(bad, text: str) -> list[str]:
    """Overrides for a simulated user."""
    bad.write("user.py", HEAD + text)
    bad.write("users.yaml", f"interaction: [{{class_name: '{bad.folder}/user.py:User'}}]")
    path = f"rollout.multi_turn.interaction_config_path={bad.folder}/users.yaml"
    return ["rollout.agent.default_agent_loop=tool_agent", path]


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return {}['goal']", "generate_response raised KeyError: 'goal' ("),
        ("return 3", "returned 3, expected (done, text, score, data)"),
        ("return True, 'bye', 'good', {}", "returned (True, 'bye', 'good', {}), expected"),
        ("return True, 'bye', float('nan'), {}", "expected (done, text, score, data)"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_simulated_user_errors_are_named(bad, kind, body, complaint):
    line = bad.refused(*user(bad, ANSWER.format(kind=kind, body=body)))
    assert line.startswith("all 8 rollouts failed; the first: InfraError: interaction 'user'")
    assert complaint in line


@pytest.mark.slow
def test_simulated_user_with_plain_methods_works(bad):
    options = user(bad, ANSWER.format(kind="def", body="return True, 'bye', 0.5, {}"))
    assert bad.goes_on(*options)["stop/interaction_ended"] == 1.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("class Usr: pass", "has no 'User': did you mean 'Usr'?"),
        ("class User(BaseInteraction): pass", "must define generate_response"),
        ("class User:\n    def __init__(self, config): pass", "must define generate_response"),
        ("class User(BaseInteraction):\n    def __init__(self, config): config['goal']", "failed: KeyError: 'goal' ("),
        ("import nothing_like_this", "ModuleNotFoundError"),
    ],
)
def test_unusable_simulated_user_is_refused(bad, text, complaint):
    line = bad.refused(*user(bad, text))
    assert line.startswith(f"{bad.folder}/users.yaml: interaction[0]: ")
    assert complaint in line


@pytest.mark.parametrize("text", ["interaction: [", "interaction: []", "", "interactions: [{class_name: a.B}]"])
def test_unusable_file_is_refused(bad, text):
    options = user(bad, "")
    file = bad.write("users.yaml", text)
    assert bad.refused(*options).startswith(f"{file}: ")
