"""Decides how a kind of sandbox runs a task, or finds out why the kind cannot run it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from posixpath import normpath

from agentrl.data.task_folders.dockerfile import Copy, Recipe, Run, read_dockerfile
from agentrl.data.task_folders.files import FilesError, Member, copied_members, folder_members, pack
from agentrl.data.task_folders.folder import ENVIRONMENT, SETTINGS, TESTS, TaskFolder, read_text
from agentrl.data.task_folders.settings import AgentPart, VerifierPart
from agentrl.data.task_folders.steps import WORKDIR
from agentrl.sandboxes.base import SandboxSetup
from agentrl.sandboxes.local.bubblewrap import is_system
from agentrl.sandboxes.settings import PoolSettings

LOGS, TESTS_IN, SOLUTION_IN, HOME = "/logs", "/tests", "/solution", "/root"
_WRITABLE = ("/logs/verifier", "/logs/agent", "/logs/artifacts", TESTS_IN, SOLUTION_IN, HOME)
_LOGS = Run("mkdir -p /logs/verifier /logs/agent /logs/artifacts", "/", ())
_ROOT = (None, "root", 0, "0")
DEFAULT_FOLDER = "/app"
"""The working folder of a task without a Dockerfile."""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_VARIABLE = re.compile(r"\$\{")


class NotRunnableError(Exception):
    """A kind of sandbox cannot run a task; `reasons` lists all reasons."""

    def __init__(self, task: TaskFolder, kind: str, reasons: Sequence[str]) -> None:
        super().__init__(f"the task '{task.name}' cannot run in a sandbox of kind '{kind}': {'; '.join(reasons)}")
        self.reasons = [*reasons]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Settings and preparation of a task's sandbox.

    Attributes:
        steps: commands that run in the sandbox before its first use, and copies of files into the sandbox.
    """

    task: TaskFolder
    setup: SandboxSetup
    steps: tuple[Copy | Run, ...] = ()


def plan(task: TaskFolder, sandboxes: PoolSettings) -> TaskPlan:
    """Return how sandboxes with these settings run a task.

    Raises:
        NotRunnableError: these sandboxes cannot run the task.
    """
    kind, setups = sandboxes.kind, sandboxes.setups
    if setups is None:
        raise NotRunnableError(task, kind, ["task folders run in local, docker, podman and e2b sandboxes"])
    found, reasons = _with_image(task) if setups == "image" else _with_folders(task, with_root=setups == "system")
    lacking = sandboxes.lacking()
    reasons = [*([lacking] if lacking else []), *_not_supported(task), *reasons, *_unreadable_files(task)]
    if reasons:
        raise NotRunnableError(task, kind, reasons)
    return found


def _not_supported(task: TaskFolder) -> Iterator[str]:
    """Yield the settings that no kind of sandbox supports."""
    settings = task.settings
    environment = settings.environment
    wrong = {
        "environment.os": environment.os != "linux",
        "environment.gpus": environment.gpus > 0,
        "environment.healthcheck": environment.healthcheck is not None,
        "environment.mcp_servers": bool(environment.mcp_servers),
        "environment.network_mode": environment.network_mode == "allowlist",
        **_of_phases("", settings.agent, settings.verifier),
    }
    envs = {"environment.env": environment.env, "verifier.env": settings.verifier.env}
    for number, step in enumerate(settings.steps or ()):
        wrong |= _of_phases(f"steps.{number}.", step.agent, step.verifier)
        wrong[f"steps.{number}.healthcheck"] = step.healthcheck is not None
        envs[f"steps.{number}.verifier.env"] = step.verifier.env
    for key in (key for key, is_wrong in wrong.items() if is_wrong):
        yield f"{SETTINGS}: '{key}' with this value is not supported"
    for key, env in envs.items():
        if any(map(_VARIABLE.search, env.values())):  # Harbor would insert this machine's values, such as API keys
            yield f"{SETTINGS}: '{key}' names variables of this machine (${{...}}), which do not reach sandboxes"
    for name in _COMPOSE:
        if (task.path / ENVIRONMENT / name).exists():
            yield f"{ENVIRONMENT}/{name}: several containers are not supported"


def _of_phases(place: str, agent: AgentPart, verifier: VerifierPart) -> dict[str, bool]:
    """Return `place` + key -> whether the value of the key is not supported, for the keys of agent and verifier."""
    wrong = {
        "agent.network_mode": agent.network_mode == "allowlist",
        "verifier.network_mode": verifier.network_mode == "allowlist",
        "verifier.environment_mode": verifier.environment_mode == "separate",
        "verifier.environment": verifier.environment is not None,
        "verifier.collect": bool(verifier.collect),
        "agent.user": agent.user not in _ROOT,
        "verifier.user": verifier.user not in _ROOT,
    }
    return {f"{place}{key}": is_wrong for key, is_wrong in wrong.items()}


def _unreadable_files(task: TaskFolder) -> Iterator[str]:
    """Yield why tests, or files of the steps, cannot be copied."""
    for folder in (task.path / TESTS, *(step.path / name for step in task.steps for name in (TESTS, WORKDIR))):
        try:
            folder_members(folder, "/")
        except FilesError as error:
            yield str(error)


def _with_image(task: TaskFolder) -> tuple[TaskPlan, list[str]]:
    environment = task.settings.environment
    builds = environment.docker_image is None
    setup = SandboxSetup(  # if the image is built, its name is set below
        folder=environment.workdir or "",
        env=tuple(environment.env.items()),
        image=environment.docker_image,
        build=task.path / ENVIRONMENT if builds else None,
        build_s=environment.build_timeout_sec,
        memory_mb=environment.memory_mb,
    )
    if not builds:
        return TaskPlan(task, setup, (_LOGS,)), []
    if not task.dockerfile.is_file():
        return TaskPlan(task, setup), [f"no {ENVIRONMENT}/Dockerfile, and no 'environment.docker_image' in {SETTINGS}"]
    try:
        content = pack(folder_members(task.path / ENVIRONMENT, "/"))
    except FilesError as error:
        return TaskPlan(task, setup), [str(error)]
    name = f"agentrl-task:{blake2b(content, digest_size=16).hexdigest()}"
    return TaskPlan(task, replace(setup, image=name), (_LOGS,)), []


def _with_folders(task: TaskFolder, *, with_root: bool) -> tuple[TaskPlan, list[str]]:
    environment = task.settings.environment
    recipe, reasons = _recipe(task)
    folder = normpath(f"/{(environment.workdir or recipe.folder).lstrip('/')}")
    members = list(_members(task, recipe, reasons))
    reasons += _not_writable(recipe, folder, members, with_root=with_root)
    folders = [each for each in (*_WRITABLE, *recipe.folders, folder) if each != "/"]
    if not with_root:
        tops = [_top(each) for each in recipe.mentioned if not is_system(each)]
        folders += [each for each in (*(_top(name) for name, _, _ in members), *tops) if each != "/"]
    env = {"HOME": HOME, **recipe.env, **environment.env}
    setup = SandboxSetup(folder=folder, env=tuple(env.items()), folders=tuple(dict.fromkeys(folders)))
    return TaskPlan(task, setup, tuple(recipe.steps)), reasons


def _not_writable(recipe: Recipe, folder: str, members: Sequence[Member], *, with_root: bool) -> Iterator[str]:
    """Yield a reason for each file or folder that cannot be written."""
    for each in dict.fromkeys((*recipe.folders, folder, *(name for name, _, _ in members))):
        if is_system(each, with_root=with_root):
            yield f"'{each}' is in a system folder, which cannot be written"
    for name, path, _ in () if with_root else members:
        if name.count("/") == 1 and path.is_file():
            yield f"'{name}' lies in the root folder, which cannot be written"


def _top(path: str) -> str:
    return f"/{path.split('/')[1]}"


def _recipe(task: TaskFolder) -> tuple[Recipe, list[str]]:
    environment, file = task.settings.environment, task.dockerfile
    if environment.docker_image is not None:
        return Recipe(), [f"{SETTINGS}: 'environment.docker_image' needs a sandbox with images"]
    if not file.exists() and not file.is_symlink():
        return Recipe(folder=DEFAULT_FOLDER), []
    if (task.path / ENVIRONMENT / ".dockerignore").exists():
        return Recipe(), [f"{ENVIRONMENT}/.dockerignore needs a sandbox with images"]
    try:
        text = read_text(file)
        recipe = Recipe(problems=["it has a null byte"]) if "\0" in text else read_dockerfile(text)
    except ValueError as error:
        return Recipe(), [f"{ENVIRONMENT}/Dockerfile: {error}"]
    return recipe, [f"{ENVIRONMENT}/Dockerfile: {each}" for each in recipe.problems]


def _members(task: TaskFolder, recipe: Recipe, reasons: list[str]) -> Iterator[Member]:
    """Yield all copied files and folders; for a copy that is not possible, add a reason to `reasons`."""
    for step in recipe.steps:
        try:
            yield from copied_members(step, task.path / ENVIRONMENT) if isinstance(step, Copy) else ()
        except FilesError as error:
            reasons.append(str(error))
