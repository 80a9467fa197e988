"""The example judged reward: a rule, and a judge that scores correct answers only."""

from __future__ import annotations

import asyncio
from pathlib import Path

from judge_server import JudgeServer, Reply, serving

from agentrl.cli.compose import compose_config
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import load_reward

EXTRA = {"index": 0, "prompt": [{"role": "user", "content": "What is 40+2?"}], "num_tool_calls": 1}


def test_judge_scores_only_correct_answers(monkeypatch, tmp_path):
    monkeypatch.chdir(Path(__file__).parents[2])  # the experiment's paths are relative to the repository
    with serving(JudgeServer(otherwise=lambda body: Reply('{"reason": "one call", "score": 5}'))) as server:
        keys = (f"reward.judge.url={server.url}", f"reward.judge.cache_dir={tmp_path}")
        reward = load_reward(compose_config(["+experiment=calculator_judged", *keys]).reward)
        found = [
            asyncio.run(reward("calculator", text, "42", {**EXTRA, "last_turn": text}))
            for text in ("The answer is 42", "The answer is 41")
        ]
        close_reward(reward)
    right, wrong = found
    assert (right["score"], right["right"], right["work"]) == (1.1, 1.0, 0.5)
    assert (wrong["score"], "work" in wrong) == (0.0, False)
    (body,) = server.bodies
    asked = body["messages"][1]["content"]
    assert asked.startswith("A calculator agent was asked:\n<<<QUESTION ")
    assert "Give 10 if every tool call was needed" in asked
