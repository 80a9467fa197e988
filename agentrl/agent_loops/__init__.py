"""Agent loops: how one attempt at a task goes. `AgentLoop` and `register` are what a user's own loop needs."""

from agentrl.agent_loops.base import AgentLoop, agent_loops, register

__all__ = ["AgentLoop", "agent_loops", "register"]
