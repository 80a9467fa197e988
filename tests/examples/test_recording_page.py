"""The commands of docs/recording.md for a running gateway: run as a reader would paste them."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from gateway_process import started
from reader import ROOT, blocks_of

from agentrl.store import TrajectoryStore

PAGE = ROOT / "docs/recording.md"
SCRIPT = "def reply(context):\n    return '12'\n"


@pytest.mark.slow
def test_the_page_opens_a_rollout_talks_with_its_key_and_ends_it_with_a_reward(task_folder, tmp_path):
    (requests,) = [block for block in blocks_of(PAGE) if block.kind == "server"]
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["--model", f"{task_folder}/model", "rollout.engine=scripted", "rollout.script_path=script.py:reply"]
    with started(tmp_path, *words, "trainer.default_local_dir=recorded") as (process, variables):
        exports = [f"export {name}={value}" for name, value in variables.items()]
        script = "\n".join([*exports, "set -e", requests.text])
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "http_proxy": ""}
        )
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    decoder, answers, text = json.JSONDecoder(), [], done.stdout
    while text.strip():
        answer, end = decoder.raw_decode(text.lstrip())
        answers.append(answer)
        text = text.lstrip()[end:]
    opened, answer, ended = answers
    assert opened["rollouts"][0]["key"] == "my-key-of-this-rollout"
    assert answer["choices"][0]["message"]["content"] == "12"
    assert ended["file"] == f"{tmp_path}/recorded/trajectories/train/step-000001.parquet"
    (one,) = TrajectoryStore(tmp_path / "recorded/trajectories/train").scan()
    assert (one.task.data_source, one.task.ground_truth, one.rollout.rewards) == ("sums", "12", {"score": 1.0})
