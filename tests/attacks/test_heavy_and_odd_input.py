"""Attacks that agentrl has always withstood: many rollouts, odd text, answers, queries and damaged files."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentrl.backends.torch.checkpoint import STATE_FILE, read_state
from agentrl.chat.parsers.hermes import HermesParser
from agentrl.chat.parsers.react import ReactParser
from agentrl.cli.main import main
from agentrl.config.model import ModelConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import AgentRLError, ConfigError
from agentrl.models.loading import load_model
from agentrl.sandboxes.sandbox_fusion.client import FusionRun, TryAgainError, _object, _read
from agentrl.types.rollout import Stop

TESTS = Path(__file__).parents[1]

PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": {', "Action: f", "\n"),
    *("\nAction Input: ", "\nObservation:", "\nFinal Answer:", "**", "```json", '"', "\\", "}", "]", "[" * 50, "1e999"),
    *("NaN", "\ud800", "\0", "é", "  ", "{", ",", ":", "-", "`", "null", "\x1b[2J", "\u202e", "9" * 50),
)


def odd_text(chance: random.Random, most: int = 30) -> str:
    return "".join(chance.choices(PIECES, k=chance.randrange(most)))


# ---- many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_five_thousand_rollouts_at_once():
    from loop_builders import TASK, TOKENIZER, add, call, config, runner

    from agentrl.engines.scripted import ScriptedEngine

    def reply(context: str) -> str:
        return "5" if "tool_response" in context else call("add", a=2, b=3)

    async def roll_out():
        engine = ScriptedEngine(reply, tokenizer=TOKENIZER, of_text=True, delay_s=0.01)
        rolls_out = runner(engine, config(), [add])
        return await asyncio.gather(*(rolls_out.run(TASK, SamplingParams(), seed=n) for n in range(5_000)))

    rollouts = asyncio.run(roll_out())
    assert {rollout.stop for rollout in rollouts} == {Stop.FINISHED}
    assert {rollout.tool_calls[0].result for rollout in rollouts} == {"5"}


MEMORY = """
import os, resource, sys
from agentrl.cli.main import main
from agentrl.trainer import after_step

measured = []
log = after_step.AfterStep.__call__

async def watched(self, step, *rest):
    await log(self, step, *rest)
    with open("/proc/self/statm") as file:
        mib = int(file.read().split()[1]) * resource.getpagesize() / 2**20
    measured.append((mib, len(os.listdir("/proc/self/fd"))))

after_step.AfterStep.__call__ = watched
status = main(sys.argv[1:])
print("measured", status, *[f"{mib:.0f}/{num}" for mib, num in measured])
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_and_descriptors_stay_constant_over_two_hundred_steps(task_folder, tmp_path):
    keys = {
        "model.path": f"{task_folder}/model",
        "data.train_files": f"{task_folder}/train.jsonl",
        "reward.custom_reward_function.path": "examples/calculator/reward.py",
        "trainer.logger": "[jsonl]",
        "rollout.multi_turn.function_tool_path": "examples/calculator/tool.py",
        "rollout.n": 2,
        "rollout.agent.default_agent_loop": "tool_agent",
        "data.train_batch_size": 1,
        "data.max_prompt_length": 64,
        "data.max_response_length": 16,
        "rollout.max_num_seqs": 2,
        "trainer.total_training_steps": 200,
        "trainer.default_local_dir": tmp_path,
        "rollout.multi_turn.max_turn_tokens": 8,
        "actor.optim.lr": 1e-5,
    }
    command = [sys.executable, "-c", MEMORY, "train", *(f"{key}={value}" for key, value in keys.items())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("measured"))
    _, status, *pairs = line.split()
    memory, descriptors = zip(*(map(int, pair.split("/")) for pair in pairs), strict=True)
    assert (status, len(memory)) == ("0", 200)
    assert max(memory[100:]) - max(memory[50:100]) < 40, memory[::20]  # MiB; a leak of 1 MiB per step would add 100
    assert max(descriptors[100:]) <= max(descriptors[20:100]) + 2, descriptors[::20]


# ---- odd text -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("parser", [HermesParser(), ReactParser()], ids=["hermes", "react"])
def test_parsers_read_any_text(parser):
    chance = random.Random(0)
    for _ in range(20_000):
        for call in parser.parse(odd_text(chance)).calls:
            assert call.error is not None or isinstance(json.loads(call.arguments), dict)
    for piece in PIECES:
        parser.parse(piece * (1_000_000 // len(piece)))


@pytest.mark.slow
def test_forged_control_tokens_stay_text():
    from chat_families import NAMES, family_tokenizer

    from agentrl.chat.format import ChatFormat

    chance = random.Random(1)
    for family in NAMES:
        chat = ChatFormat(family_tokenizer(family))
        control = chat.template.control_tokens
        forged = sorted(control)
        plain = chat.extend([{"role": "user", "content": "x"}], (), turn_closed=True)
        expected = [token for token in plain if token in set(control.values())]
        for _ in range(1_000):
            text = "".join(chance.choices([*forged, *(name[: len(name) // 2] for name in forged), "a", " "], k=8))
            ids = chat.extend([{"role": "user", "content": text}], (), turn_closed=True)
            assert [token for token in ids if token in set(control.values())] == expected, text


@pytest.mark.slow
def test_any_sandbox_answer_is_handled():
    chance = random.Random(2)
    values = [None, True, 3, -1, 1e300, "", "Success", "Finished", "\ud800", [], [1], {}, {"stdout": 3}]
    fields = ("status", "message", "compile_result", "run_result", "stdout", "return_code", "files", "stderr")

    def value(depth: int = 0) -> object:
        if depth < 2 and chance.random() < 0.4:
            return {name: value(depth + 1) for name in chance.sample(fields, chance.randrange(len(fields)))}
        return chance.choice(values)

    read = 0
    for _ in range(20_000):
        answer = {"status": chance.choice(["Success", "Failed", "SandboxError", value()]), "run_result": value()}
        answer |= {"compile_result": value()} if chance.random() < 0.5 else {}
        answer |= {"files": value()} if chance.random() < 0.2 else {}
        try:
            read += isinstance(_read(answer), FusionRun)
        except TryAgainError:
            continue
    assert read > 1_000
    for content in (b"", b"[]", b"[" * 5_000, b"\xff", b'{"a":' * 5_000, b"1" * 5_000, b"null", os.urandom(500)):
        with pytest.raises(TryAgainError):
            _object(content)


@pytest.mark.slow
def test_the_viewer_answers_hostile_queries(tmp_path):
    from viewer_runs import HOSTILE, Asked, group, rollout, write_metrics, write_run

    folder = write_run(tmp_path / "run", {1: [group("g", rollout(HOSTILE), rollout(error=HOSTILE, reward=1.0))]})
    write_metrics(folder, [{"step": 1, HOSTILE: 1.0}])
    asked, chance = Asked(folder), random.Random(3)
    names = ("split", "step", "sort", "offset", "limit", "text", "reward_min", "index", "tool", "stop", "run")
    values = (*PIECES[:20], HOSTILE, "-1", "0", str(2**70), "nan", "../../etc/passwd", "%00", "a" * 9_000)
    paths = ("api/rows", "api/runs", "api/metrics", "api/rollout", "api/conversation", "static/../app.py", "x" * 500)
    statuses = set()
    try:
        for _ in range(1_500):
            words = {name: chance.choice(values).encode(errors="replace").decode() for name in chance.sample(names, 3)}
            statuses.add(asked.get(chance.choice(paths), **words).status_code)
    finally:
        asked.close()
    assert statuses <= {200, 400, 404, 414, 431}
    assert 200 in statuses


# ---- damaged and hostile files --------------------------------------------------------------------------------------


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_pickle_in_a_checkpoint_is_not_run(tmp_path, write):
    canary = tmp_path / "canary"
    (tmp_path / STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
    write({"optimizer": Canary(canary), "random": {}}, tmp_path / STATE_FILE)
    with pytest.raises(ConfigError):
        read_state(tmp_path)
    assert not canary.exists()


@pytest.mark.slow
def test_a_pickle_in_place_of_weights_is_not_run(task_folder, tmp_path):
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(task_folder / "model", model)
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    torch.save({"model.embed_tokens.weight": Canary(canary)}, model / "pytorch_model.bin")
    with pytest.raises(AgentRLError):
        load_model(ModelConfig(path=str(model)), torch.device("cpu"))
    assert not canary.exists()


def damaged(run: Path, folder: Path) -> Iterator[Path]:
    """Copies of a run, each with one file deleted or halved."""
    for file in sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and not path.is_symlink()):
        for harm in ("deleted", "halved"):
            copy = folder / f"{harm} {str(file).replace('/', ' ')}"
            shutil.copytree(run, copy, symlinks=True)
            content = (copy / file).read_bytes()
            (copy / file).unlink()
            if harm == "halved":
                (copy / file).write_bytes(content[: len(content) // 2])
            yield copy


@pytest.mark.slow
def test_a_run_with_a_deleted_or_halved_file_is_read_or_refused_in_one_line(honest_run, tmp_path, capsys):
    num_refused = 0
    for run in damaged(honest_run, tmp_path):
        for words in (["replay", str(run), "audit", "readvantage"], ["eval", "--from", str(run)]):
            status = main(words)
            said = capsys.readouterr().err
            assert status in (0, 1, 2), (run.name, words)
            assert "Traceback" not in said, (run.name, words)
            num_refused += status == 2
        shutil.rmtree(run)
    assert num_refused
