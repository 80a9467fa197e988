"""Real harnesses, unchanged, each in an environment of its own: every request that continues is recognised."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from harness_rolls import Rolls, check_tokens
from loop_builders import TOKENIZER, call

from agentrl.engines.base import Completion, GenerateRequest
from agentrl.engines.scripted import ScriptedEngine
from agentrl.types.rollout import Stop
from agentrl.types.task import Task
from agentrl.utils.shipped import shipped

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TASK = Task([{"role": "user", "content": "Write 5 to the file answer."}], ground_truth="5", uid="t0")


@dataclass(frozen=True)
class Real:
    """A harness.

    Attributes:
        replies: the model's turns.
        pip: name of the environment, or "".
        npm: package, or "". Its scripts are not run: they download programs.
        programs: folder of its programs in node_modules.
        program: text of agent.py, for libraries.
        apart: whether no request continues another one.
        beside: number of requests that are not part of the main conversation.
    """

    replies: tuple[str, ...]
    pip: str = ""
    npm: str = ""
    programs: str = ".bin"
    program: str = ""
    apart: bool = False
    beside: int = 0


class Scripted(ScriptedEngine):
    """Answers with the reply of the turn; requests without tools get a title."""

    def __init__(self, replies: tuple[str, ...]) -> None:
        super().__init__(self._reply, tokenizer=TOKENIZER, of_text=True)
        self._replies = replies
        self.requests: list[GenerateRequest] = []

    def _reply(self, text: str) -> str:
        if "<tools>" not in text:
            return "A title"
        turn = text.count("<|im_start|>assistant") - 1
        return self._replies[min(turn, len(self._replies) - 1)]

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        return await super().generate(request)


def commands(tool: str, key: str, *lines: str) -> tuple[str, ...]:
    """Calls of a shell, with a thought before each."""
    return tuple(f"Step {number}.\n{call(tool, **{key: line})}" for number, line in enumerate(lines))


LANGGRAPH = """
import os, subprocess
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

@tool
def bash(command: str) -> str:
    "Run a command."
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "no output"

model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools([bash])

def think(state):
    return {"messages": [model.invoke(state["messages"])]}

def act(state):
    calls = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage(bash.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]}

graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("act", act)
graph.add_edge(START, "think")
graph.add_conditional_edges("think", lambda state: "act" if state["messages"][-1].tool_calls else END)
graph.add_edge("act", "think")
answer = graph.compile().invoke({"messages": [("user", os.environ["AGENTRL_INSTRUCTION"])]})
print(answer["messages"][-1].content)
"""
OPENAI_AGENTS = """
import os, subprocess
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)

@function_tool
def bash(command: str) -> str:
    "Run a command."
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "no output"

model = OpenAIChatCompletionsModel(model=os.environ["OPENAI_MODEL"], openai_client=AsyncOpenAI())
print(Runner.run_sync(Agent(name="a", model=model, tools=[bash]), os.environ["AGENTRL_INSTRUCTION"]).final_output)
"""
PYDANTIC_AI = """
import os, subprocess
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"], provider=OpenAIProvider()))

@agent.tool_plain
def bash(command: str) -> str:
    "Run a command."
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "no output"

print(agent.run_sync(os.environ["AGENTRL_INSTRUCTION"]).output)
"""
SMOLAGENTS = """
import os, subprocess
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

@tool
def bash(command: str) -> str:
    '''Run a command.

    Args:
        command: what to run.
    '''
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout or "no output"

address, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
model = OpenAIServerModel(os.environ["OPENAI_MODEL"], api_base=address, api_key=key)
print(ToolCallingAgent(tools=[bash], model=model).run(os.environ["AGENTRL_INSTRUCTION"]))
"""
SHELL = commands("bash", "command", "printf 5 > answer", "cat answer")

REAL = {
    "mini-swe-agent": Real(
        (*SHELL, *commands("bash", "command", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")), pip="mini_swe_agent"
    ),
    "langgraph": Real((*SHELL, "Done."), pip="langgraph", program=LANGGRAPH),
    "openai-agents": Real((*SHELL, "Done."), pip="openai_agents", program=OPENAI_AGENTS),
    "pydantic-ai": Real((*SHELL, "Done."), pip="pydantic_ai", program=PYDANTIC_AI),
    "smolagents": Real((*SHELL, call("final_answer", answer="5")), pip="smolagents", program=SMOLAGENTS, apart=True),
    "codex": Real(
        (*commands("exec_command", "cmd", "printf 5 > answer", "cat answer"), "Done."), npm="@openai/codex@0.169.0"
    ),
    "claude-code": Real(
        (*commands("Bash", "command", "printf 5 > answer", "cat answer"), "Done."),
        npm="@anthropic-ai/claude-code-linux-x64@2.1.197",
        programs="@anthropic-ai/claude-code-linux-x64",
        beside=1,
    ),
    "opencode": Real((*SHELL, "Done."), npm="opencode-linux-x64@1.18.33", programs="opencode-linux-x64/bin", beside=1),
}
EVERY_CHANGE = {"mini-swe-agent", "langgraph", "codex", "claude-code"}


def programs(real: Real, peer_python: Callable[[str], Path]) -> Path:
    """The folder of the harness's programs; installs it first."""
    if real.pip:
        return peer_python(real.pip).parent
    folder = ROOT / ".cache/peers" / real.npm.strip("@").replace("/", "-")
    if not (folder / "node_modules").exists():
        if shutil.which("npm") is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)("npm is not installed: make node")
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(["npm", "install", *options, "--prefix", folder, real.npm], check=True, capture_output=True)
    return folder / "node_modules" / real.programs


@pytest.mark.parametrize(
    "name", [name if name in EVERY_CHANGE else pytest.param(name, marks=pytest.mark.nightly) for name in REAL]
)
def test_every_request_that_continues_is_recognised(name, peer_python, tmp_path, monkeypatch):
    real = REAL[name]
    settings = yaml.safe_load(shipped(f"configs/harness/{name}.yaml").read_text())
    folders = f"{programs(real, peer_python)}{os.pathsep}{os.environ['PATH']}"
    settings["env"] = {"PATH": folders, **settings.get("env", {})}
    settings["env"]["PATH"] = folders
    settings["readonly"] = [str(ROOT / ".cache/peers")]
    if real.program:
        (tmp_path / "agent.py").write_text(real.program)
        monkeypatch.chdir(tmp_path)
    settings["deadline_s"] = 300
    rolls = Rolls(tmp_path)
    engine = Scripted(real.replies)
    data = {"max_prompt_length": 200_000, "max_response_length": 50_000}
    (rollout,) = rolls(task=TASK, engine=engine, data=data, **settings)
    assert (rollout.error, rollout.stop) == (None, Stop.FINISHED)
    assert rollout.facts["harness_exit_code"] == 0
    check_tokens(rollout, engine)
    turns = sorted(trajectory.num_turns for trajectory in rollout.trajectories)
    num_turns = len(real.replies)
    assert turns == ([1] * num_turns if real.apart else [*[1] * real.beside, num_turns])


def test_mini_swe_agent_does_not_repeat_a_request_without_room(peer_python, tmp_path):
    settings = yaml.safe_load(shipped("configs/harness/mini-swe-agent.yaml").read_text())
    folders = f"{programs(REAL['mini-swe-agent'], peer_python)}{os.pathsep}{os.environ['PATH']}"
    settings["env"] = {**settings.get("env", {}), "PATH": folders}
    settings |= {"readonly": [str(ROOT / ".cache/peers")], "deadline_s": 120}
    engine = Scripted(commands("bash", "command", "seq 2000", "true"))
    data = {"max_prompt_length": 200_000, "max_response_length": 1000}
    (rollout,) = Rolls(tmp_path)(task=TASK, engine=engine, data=data, **settings)
    assert (rollout.stop, rollout.facts["harness_requests"]) == (Stop.MAX_RESPONSE_TOKENS, 2)
