from __future__ import annotations

import json

import pytest

from agentrl.cli.compose import compose_config
from agentrl.cli.main import main
from agentrl.config import validate_config
from agentrl.config.document import redacted, without_secrets
from agentrl.errors import ConfigError
from agentrl.security.redaction import REDACTED, is_secret_name, redacted_text, redacted_value

NAMES = [
    "token",
    "key",
    "bearer",
    "X-Api-Key",
    "Authorization",
    "secret",
    "password",
    "GH_PAT",
    "accessToken",
    "apikey",
]
FORMS = [
    "hf_abcdefghijklmnopqrstuv",
    "sk-proj-abcdefghijklmnop",
    "ghp_abcdefghijklmnopqrstuvwx",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc123def",
    "https://user:hunter22@example.org/x",
    "https://example.org/x?api_key=hunter22",
    "Authorization: Bearer hunter22hunter22",
]


@pytest.mark.parametrize("name", NAMES)
def test_secrets_are_recognized_by_their_names_at_any_depth(name: str) -> None:
    value = {"a": [{"b": {name: "hunter22"}}], name: {"deep": ["hunter22", 3]}}

    assert "hunter22" not in json.dumps(redacted_value(value))


@pytest.mark.parametrize("name", ["max_tokens", "api_key_env", "score_key", "tokenizer_path", "monkey", "keyword"])
def test_other_names_are_not_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("text", FORMS)
def test_secrets_are_recognized_by_their_form(text: str) -> None:
    shown = redacted_text(f"before {text} after")

    assert REDACTED in shown
    assert "hunter22" not in shown
    assert text not in shown
    assert shown.startswith("before ")


def test_environment_values_are_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_THING", "plain-words-of-the-environment")
    given = "reward.custom_reward_function={path: r.py, reward_kwargs: {greeting: '${oc.env:MY_THING}'}}"
    config = compose_config(["model.path=m", given])

    assert config.reward.custom_reward_function.reward_kwargs == {"greeting": "plain-words-of-the-environment"}
    assert "plain-words" not in json.dumps(redacted(config))
    assert main(["config", "model.path=m", given]) == 0
    assert main(["train", "model.path=m", "rollout.n=${oc.env:MY_THING}"]) == 2
    said = capsys.readouterr()
    assert "plain-words" not in said.out + said.err
    assert "rollout.n" in said.err


def test_servers_environment_and_nested_options_are_kept_without_values() -> None:
    config = validate_config(
        {
            "model": {"path": "m"},
            "rollout": {"engine": "sglang", "sglang": {"env": {"HF_TOKEN": "a", "ANY": "b"}}},
            "reward": {"custom_reward_function": {"path": "r.py", "reward_kwargs": {"clients": [{"api_key": "c"}]}}},
        }
    )
    kept = redacted(config)

    assert kept["rollout"]["sglang"]["env"] == {"HF_TOKEN": REDACTED, "ANY": REDACTED}  # type: ignore[index,call-overload]  # JSON
    assert without_secrets(kept) == kept  # so that a resumed run's configuration compares equal
    with pytest.raises(ConfigError, match=r"'rollout.sglang.env.HF_TOKEN': secrets are not saved with a run"):
        validate_config(kept)
