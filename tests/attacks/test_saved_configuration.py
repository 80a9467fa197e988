"""A hostile saved configuration: no key of it runs code, writes a file or contacts a server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_runs import CONFIG, copied, put, with_keys
from watched import suspicious, watched

from agentrl.cli.main import main
from agentrl.config.uses import Use, mark_of
from agentrl.config.validate import config_fields
from agentrl.replay.trusted_config import trusted_values

MARKS = {key: mark_of(field) for key, field in config_fields()}
HOSTILE = sorted(key for key, mark in MARKS.items() if mark.use is not Use.PLAIN)
KEPT = {("reward.name", "judge"), ("reward.name", "reward_model")}
"""Values of those keys that commands read from a saved run: built-in names."""
OTHER_TYPES = {"algorithm.beta", "reward.include_tool_text", "reward.judge.score_range", "rollout.top_p"}
"""Keys that accept no text: a number, a flag, a pair of numbers, a bounded number."""
TEXTS = {
    key
    for key, field in config_fields()
    if any(word in f"{field.annotation} {field.metadata}" for word in ("str", "Path", "dict"))
}
EXPLOIT = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ answer }}{{ cycler.__init__.__globals__.os.system('%s') }}"


class Trap:
    """A code file that leaves a mark when it is run, and a port that records connections."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        folder.mkdir()
        self.folder, self._listener = folder, listener
        self.code = folder / "evil.py"
        self.canary = folder / "was_here"
        body = "def f(*a, **k): mark()\nclass F:\n    def __init__(self, *a, **k): mark()\nfrom f_string import x\n"
        self.code.write_text(f"def mark():\n    open({str(self.canary)!r}, 'w')\nmark()\n{body}")
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    def values(self, key: str) -> list[object]:
        """Values of every type that the key accepts."""
        mark, command = MARKS[key], f"touch {self.canary}"
        if key.endswith("trust_remote_code"):
            return [True]
        if key == "rollout.engine":
            return ["sglang", "scripted", f"{self.code}:f"]
        if key == "reward.reward_manager.source":
            return ["importlib"]
        if key == "reward.components":
            return [{"a": {"reward": f"{self.code}:f"}}, {"a": {"reward": "judge"}}]
        if key.endswith((".env", "server_args", "kwargs", "options")):
            return [{"PYTHONSTARTUP": str(self.code), "path": str(self.code), "chat_template": EXPLOIT % command}]
        if key == "trainer.logger":
            return [["wandb", "tensorboard"]]
        if key.endswith(("files", "urls", "injections", "modules", "keys", "values")):
            return [[str(self.code)], [self.url]]
        texts = [f"{self.code}:f", str(self.code), str(self.canary / "folder"), self.url, EXPLOIT % command]
        return [*texts, "judge", "reward_model"] if mark.component == "reward" else list(texts)

    @property
    def sprung(self) -> bool:
        """Whether the code was run or the port was contacted."""
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return self.canary.exists()
        return True


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Trap(tmp_path / "trap", listener)


def commands(run: Path, out: Path) -> list[list[str]]:
    """Every command except `view` that reads a saved run without user code."""
    out.mkdir(exist_ok=True)
    replay = ["replay", str(run)]
    own = ["--reward", "exact_match"]
    return [
        [*replay, "readvantage"],
        [*replay, "rescore"],
        [*replay, "rescore", *own, "reward.judge.url=http://127.0.0.1:9/v1"],
        [*replay, "audit"],
        [*replay, "hacking"],
        [*replay, "compare", str(run)],
        [*replay, "tools", *own, "--out", str(out / "tools")],
        [*replay, "from-turn", "1", *own, "--out", str(out / "turn")],
        [*replay, "logprobs", f"model.path={run}/checkpoints/latest"],
        ["eval", "--from", str(run), "--json", str(out / "eval.json")],
        ["export-rollouts", str(run), "--format", "messages", str(out / "rows.jsonl")],
        ["export-rollouts", str(run), "--format", "verl", str(out / "rows.parquet")],
    ]


def attacked(honest_run: Path, folder: Path, values: dict[str, object], trap: Trap, *, fast: bool = False) -> None:
    """Run every command on a copy with those values; no command triggers the trap or ends in a traceback.

    Args:
        fast: without the command that loads a model.
    """
    run = copied(honest_run, folder / "run", with_keys(values))
    for words in commands(run, folder / "out"):
        if fast and "logprobs" in words:
            continue
        with watched() as seen:
            main(words)  # any error that is not an AgentRLError would be raised
        assert not trap.sprung, words
        assert suspicious(seen, folder / "out") == [], words


def test_saved_configuration_provides_only_plain_values_and_built_in_names(trap: Trap) -> None:
    for key in HOSTILE:
        for value in trap.values(key):
            assert is_dropped(key, value) or (key, value) in KEPT, key


def is_dropped(key: str, value: object) -> bool:
    kept: dict[str, object] = {}
    put(kept, key, value)
    return value not in flat(trusted_values(kept))


def flat(values: object) -> Iterator[object]:
    if isinstance(values, dict):
        for value in values.values():
            yield from flat(value)
    else:
        yield values


@pytest.mark.slow
def test_every_hostile_key_at_once(honest_run: Path, tmp_path: Path, trap: Trap) -> None:
    attacked(honest_run, tmp_path / "all", {key: trap.values(key)[0] for key in HOSTILE}, trap)


@pytest.mark.slow
@pytest.mark.one_in(11)
@pytest.mark.parametrize("key", sorted((TEXTS | OTHER_TYPES) - set(HOSTILE)))
def test_hostile_values_of_each_key_run_no_code(honest_run: Path, tmp_path: Path, trap: Trap, key: str) -> None:
    for number, value in enumerate(trap.values(key)):
        attacked(honest_run, tmp_path / str(number), {key: value}, trap, fast=number > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), sorted(KEPT))
def test_built_in_name_with_a_hostile_key_runs_no_code(
    honest_run: Path, tmp_path: Path, trap: Trap, key: str, value: str
) -> None:
    attacked(honest_run, tmp_path / "kept", {key: value}, trap)


@pytest.mark.slow
def test_refused_settings_of_a_run_are_printed(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(honest_run, tmp_path / "run", with_keys({"algorithm.adv_estimator": "evil.py:f"}))

    assert main(["replay", str(run), "readvantage"]) == 2
    assert "if you trust it, add algorithm.adv_estimator=evil.py:f" in capsys.readouterr().err
    assert main(["replay", str(run), "readvantage", "algorithm.adv_estimator=rloo"]) == 0


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("kept", [[1], "{", "1", "[" * 50_000, '{"model": 5, "rollout": [], "reward": {"judge": 7}}'])
def test_invalid_configuration_is_refused(honest_run: Path, tmp_path: Path, kept: object) -> None:
    text = kept if isinstance(kept, str) else json.dumps(kept)
    run = copied(
        honest_run,
        tmp_path / "run",
        lambda table: table.replace_schema_metadata({**table.schema.metadata, CONFIG: text.encode()}),
    )
    for words in commands(run, tmp_path / "out"):
        main(words)
