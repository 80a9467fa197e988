"""Run mini-swe-agent's own agent and model classes on task folders. Commands run in the sandbox of the rollout."""

from __future__ import annotations

import asyncio

import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

COMMAND_TIMEOUT_S = 10.0
OBSERVATION = "{{ output.exception_info or output.output.strip() or '[no output]' }}"

litellm.suppress_debug_info = True  # otherwise litellm prints at each request that it knows no price for this model


class SandboxEnvironment(LocalEnvironment):
    """Runs commands in the sandbox of the rollout instead of on this machine."""

    def __init__(self, endpoint, loop):
        super().__init__()
        self.endpoint, self.loop = endpoint, loop

    def execute(self, action, cwd=""):
        """Run the model's command; see `minisweagent.Environment`."""
        running = self.endpoint.run_command(str(action["command"]), timeout_s=COMMAND_TIMEOUT_S)
        result = asyncio.run_coroutine_threadsafe(running, self.loop).result()
        problem = "[timeout]" if result.timed_out else ""
        output = {"output": result.output, "returncode": result.exit_code, "exception_info": problem}
        self._check_finished(output)
        return output


def agent(endpoint, loop):
    """Configure mini-swe-agent for a tiny model: short templates, three turns, and an end at a turn without a call."""
    access = {"api_base": endpoint.base_url, "api_key": endpoint.key}
    model = LitellmModel(
        model_name=f"openai/{endpoint.model}",
        model_kwargs=access,
        observation_template=OBSERVATION,
        cost_tracking="ignore_errors",
    )
    return DefaultAgent(
        model,
        SandboxEnvironment(endpoint, loop),
        system_template="You are a shell agent.",
        instance_template="{{ task }}",
        step_limit=3,
        max_consecutive_format_errors=1,
    )


async def run(task, endpoint):
    """Work on one task."""
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(agent(endpoint, loop).run, task.instruction)
