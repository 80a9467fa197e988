"""Rollouts of an agent loop with a scripted model, saved as a validation for the audit, without a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from chat_families import family_tokenizer
from loop_builders import add, exact

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.audit.auditor import Auditor
from agentrl.audit.base import Ledger
from agentrl.chat.format import ChatFormat
from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.interactions.base import BaseInteraction
from agentrl.rollouts.runner import RolloutRunner
from agentrl.run_folder.provenance import provenance
from agentrl.store import TrajectoryStore
from agentrl.tools.agent_tool import agent_tools
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Group
from agentrl.types.task import Task
from agentrl.utils.seeds import derive_seed

CHAT = ChatFormat(family_tokenizer("chatml"))
TASKS = [
    Task([{"role": "user", "content": f"What is {n} + 3?"}], ground_truth=str(n + 3), data_source="sums", index=n)
    for n in range(3)
]
NUM_ROLLOUTS = 2


def fail(kind: str) -> str:
    """Fail.

    Args:
        kind: how.
    """
    raise {"tool": ToolError("no"), "infra": InfraError("down")}.get(kind, ValueError("a bug"))


class User(BaseInteraction):
    """Asks twice, then ends the conversation."""

    async def generate_response(self, instance_id, messages, **kwargs):
        asked = sum(message["role"] == "user" for message in messages)
        return asked > 2, f"And {asked}?", 0.5, {}


def saved_rollouts(
    folder: Path,
    loop: type[AgentLoop] | str,
    reply: Callable[[str], str],
    *,
    multi_turn: Mapping[str, object] | None = None,
    row: Mapping[str, object] | None = None,
    user: bool = False,
    chat: ChatFormat = CHAT,
) -> Path:
    """Roll out `TASKS`, `NUM_ROLLOUTS` each, and save them; the file. `reply` maps the context to the next turn."""
    chat.tokenizer.save_pretrained(folder / "model")
    if not isinstance(loop, str):
        agent_loops.register(loop.__name__)(loop)
    config = RunConfig.model_validate(
        {
            "model": {"path": str(folder / "model")},
            "data": {"max_response_length": 400, "max_prompt_length": 1000},
            "rollout": {
                "engine": "scripted",
                "val_kwargs": {"n": NUM_ROLLOUTS, "do_sample": True},
                "agent": {"default_agent_loop": loop if isinstance(loop, str) else loop.__name__},
                "multi_turn": {
                    **({"interaction_config_path": "user.yaml"} if user else {}),
                    "max_assistant_turns": 6,
                    **(multi_turn or {}),
                },
            },
        }
    )
    toolbox = Toolbox([add, fail, *agent_tools(config.rollout)], config.rollout.multi_turn)
    engine = ScriptedEngine(reply, tokenizer=chat.tokenizer, of_text=True, stop_token_id=chat.stop_token_ids[0])
    users = {"user": User({})} if user else None
    runner = RolloutRunner(engine, chat, toolbox, exact, config, interactions=users)
    tasks = [replace(task, uid=f"val-{task.index}", **(row or {})) for task in TASKS]
    groups = [Group(task, asyncio.run(rolled_out(runner, config, task))) for task in tasks]
    store = TrajectoryStore(folder / "val", split="val", provenance=provenance(chat.tokenizer, config, toolbox.schemas))
    return store.write(0, groups)


async def rolled_out(runner: RolloutRunner, config: RunConfig, task: Task):
    base = derive_seed(config.trainer.seed, "val")
    seeds = [derive_seed(base, task.uid, number) for number in range(NUM_ROLLOUTS)]
    return [await runner.run(task, SamplingParams(temperature=1.0), seed=seed) for seed in seeds]


def audited(path: Path) -> Ledger:
    return Auditor("val").audit([path])


def broken(ledger: Ledger) -> dict[str, str]:
    """Invariant -> column of its first problem."""
    return {name: found.problems[0].column for name, found in ledger.findings.items() if found.num_problems}


def reasons(ledger: Ledger) -> dict[str, list[str]]:
    """Invariant -> why items were not checked."""
    return {name: list(found.unchecked) for name, found in ledger.findings.items() if found.unchecked}
