"""Small runs on disk, and the app that shows them, for viewer tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from starlette.testclient import TestClient

from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan
from agentrl.viewer.app import make_app
from agentrl.viewer.runs import ViewedRun

HOSTILE = (
    "<script>window.hit=1</script><img src=x onerror=window.hit=1>\u202eevil\u0007\ud83d\u2066javascript:window.hit=1"
)
"""Markup, an event handler, right-to-left text, a bell, half a surrogate pair."""


def model(*token_ids: int, version: int = 0) -> Segment:
    logprobs = [-0.5 * (1 + place) for place in range(len(token_ids))]
    return Segment(Author.MODEL, token_ids, logprobs, [VersionSpan(version, len(token_ids))])


def rollout(
    text: str = "done",
    *,
    reward: float = 0.0,
    stop: Stop = Stop.FINISHED,
    calls: tuple[tuple[str, Outcome], ...] = (),
    error: str | None = None,
    rewards: dict[str, float] | None = None,
    ids: tuple[int, ...] = (3, 4, 5),
    duration_s: float = 1.0,
) -> Rollout:
    """A prompt, one model turn with its calls, and their answers."""
    segments = [Segment(Author.PROMPT, [1, 2]), model(*ids), Segment(Author.TOOL, [6]), model(7)]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    tool_calls = [
        ToolCall(name, '{"a": 1}', text, outcome, 0.2, started_s=0.1 + 0.3 * place)
        for place, (name, outcome) in enumerate(calls)
    ]
    scores = {"score": reward, **(rewards or {})}
    return Rollout(
        [Trajectory(segments, messages)], stop, scores, [], tool_calls, {}, error, seed=2**63 + 5, duration_s=duration_s
    )


def group(uid: str, *rollouts: Rollout, source: str = "sums", index: int = 0) -> Group:
    return Group(Task([{"role": "user", "content": "?"}], "7", source, index, uid), list(rollouts))


def write_run(
    folder: Path, steps: dict[int, list[Group]], split: str = "train", samples: Sequence[Sample] = ()
) -> Path:
    store = TrajectoryStore(folder / "trajectories" / split, split=split)
    for step, groups in steps.items():
        store.write(step, groups, samples)
    return folder


def write_metrics(folder: Path, rows: list[dict[str, object]], name: str = "metrics.jsonl") -> None:
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


TOKEN = "correct-horse"


class Asked:
    """The app of some runs, requested as a page requests it."""

    def __init__(self, *folders: Path, tokenizer: str | None = None, wait: bool = True) -> None:
        self.runs = [ViewedRun(str(folder), tokenizer) for folder in folders]
        for run in self.runs:
            run.index.start()
            if wait:
                run.index.wait(20, complete=True)
        self.client = TestClient(make_app(self.runs, TOKEN), base_url="http://127.0.0.1:1234", follow_redirects=False)

    def get(self, path: str, **words: object):
        return self.client.get(f"/{TOKEN}/{path}", params=words)

    def json(self, path: str, **words: object):
        answer = self.get(path, **words)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def close(self) -> None:
        for run in self.runs:
            run.index.close()
