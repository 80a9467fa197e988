"""Runs tasks of Harbor's format: the sandbox of a task, and its verifier. `agentrl.data.task_folders` reads tasks."""

from agentrl.data.task_folders.folder import TaskFolder, TaskFolderError, read_task_folder
from agentrl.task_folders.plan import NotRunnableError, TaskPlan, plan
from agentrl.task_folders.running import content_of, task_sandbox
from agentrl.task_folders.steps import TaskSteps
from agentrl.task_folders.verifier import VerifierError, score_of, verify

__all__ = [
    "NotRunnableError",
    "TaskFolder",
    "TaskFolderError",
    "TaskPlan",
    "TaskSteps",
    "VerifierError",
    "content_of",
    "plan",
    "read_task_folder",
    "score_of",
    "task_sandbox",
    "verify",
]
