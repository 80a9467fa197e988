"""The instruction that a harness gets, from the messages of a task."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import DataError
from agentrl.types.messages import image_names, message_text
from agentrl.types.task import Task


@dataclass(frozen=True, slots=True)
class Instruction:
    """Text of the user message, and of the system messages before it."""

    user: str
    system: str


def instruction_of(task: Task) -> Instruction:
    """Return the instruction of a task: one user message, after any number of system messages.

    Raises:
        DataError: the task has other messages, or images. The error text does not name the row.
    """
    *before, last = task.messages or [{"role": "none"}]
    roles = [message["role"] for message in task.messages]
    if last["role"] != "user" or any(message["role"] != "system" for message in before):
        raise DataError(
            f"field 'prompt': a harness gets one instruction: expected one user message, maybe after system messages,"
            f" not the roles {', '.join(roles) or 'of no message'}"
        )
    if image_names(task.messages):
        raise DataError("field 'prompt': a harness gets text only, and the prompt has images")
    return Instruction(message_text(last), "\n\n".join(map(message_text, before)))
