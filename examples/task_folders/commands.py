"""Small tasks with files, the commands that solve them, and demonstrations by a teacher that makes mistakes."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field

from agentrl.tools.sandbox_tools import BASH
from agentrl.types.messages import FunctionSchema, ToolSchema

Message = dict[str, object]
Files = dict[str, str]
SYSTEM_PROMPT = "You are a shell agent."
NO_OUTPUT = "[no output]"
"""Output that the tool `bash` shows for a command without output."""


@dataclass(frozen=True)
class FileTask:
    """A task: an instruction, the files in /app before and after the task, and the command that solves the task.

    Attributes:
        wrong: a command that does not solve the task, and its output.
    """

    instruction: str
    before: Files
    after: Files
    command: str
    wrong: tuple[str, str] = field(repr=False)


def draw_task(rng: random.Random) -> FileTask:
    """Draw the kind of task, the names of two files and two numbers."""
    first, second = (f"{letter}.txt" for letter in rng.sample(string.ascii_lowercase, 2))
    old, new = rng.sample(range(100, 1000), 2)
    return rng.choice(KINDS)(first, second, str(old), str(new))


def _write(first: str, second: str, old: str, new: str) -> FileTask:
    wrong = (f"echo {new}", new)
    return FileTask(f"Write {new} to {first}", {}, {first: new}, f"echo {new} > {first}", wrong)


def _append(first: str, second: str, old: str, new: str) -> FileTask:
    after, wrong = {first: f"{old}\n{new}"}, (f"echo {new} > {first}", NO_OUTPUT)
    return FileTask(f"Append {new} to {first}", {first: old}, after, f"echo {new} >> {first}", wrong)


def _copy(first: str, second: str, old: str, new: str) -> FileTask:
    after, wrong = {first: old, second: old}, (f"cat {first}", old)
    return FileTask(f"Copy {first} to {second}", {first: old}, after, f"cp {first} {second}", wrong)


def _move(first: str, second: str, old: str, new: str) -> FileTask:
    wrong = (f"ls {first}", first)
    return FileTask(f"Move {first} to {second}", {first: old}, {second: old}, f"mv {first} {second}", wrong)


def _delete(first: str, second: str, old: str, new: str) -> FileTask:
    before, wrong = {first: old, second: new}, (f"cat {first}", old)
    return FileTask(f"Delete {first}", before, {second: new}, f"rm {first}", wrong)


KINDS = (_write, _append, _copy, _move, _delete)


def prompt(task: FileTask) -> list[Message]:
    """The first messages of a rollout."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.instruction}]


def call(command: str, result: str) -> list[Message]:
    """A call of `bash` and its answer."""
    function = {"name": "bash", "arguments": {"command": command}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "name": "bash", "content": result},
    ]


def say(text: str) -> Message:
    """A turn of the model without a call."""
    return {"role": "assistant", "content": text}


@dataclass(frozen=True)
class Form:
    """Format of an agent: how it shows its tool to the model, and with which turn the model ends a rollout.

    Attributes:
        schema: the tool `bash`, as the agent describes it to the model.
        end: the model's last turn.
    """

    schema: ToolSchema
    end: Message

    def right_trace(self, task: FileTask) -> list[Message]:
        """A correct demonstration."""
        return [*prompt(task), *call(task.command, NO_OUTPUT), self.end]

    def wrong_trace(self, task: FileTask, rng: random.Random) -> list[Message]:
        """A demonstration with one of the teacher's mistakes; the most common one is to do nothing."""
        habits = {
            "ends at once": (5, [self.end]),
            "gives up": (3, [say("I do not know")]),
            "does something else": (4, [*call(*task.wrong), self.end]),
        }
        _, turns = rng.choices(list(habits.values()), [weight for weight, _ in habits.values()])[0]
        return [*prompt(task), *turns]


_COMMAND = {"type": "string", "description": "The bash command to execute"}
_MINI_SWE_BASH = FunctionSchema(
    name="bash",
    description="Execute a bash command",
    parameters={"type": "object", "properties": {"command": _COMMAND}, "required": ["command"]},
)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FORMS = {
    "tool_agent": Form(BASH.tool({"name": "bash"}, {}).schema, say("Done")),
    "mini_swe": Form(ToolSchema(function=_MINI_SWE_BASH), call(SUBMIT, "")[0]),
}
"""Formats of agentrl's agent loop `tool_agent`, and of mini-swe-agent."""
