"""Agent loops: an agent loop runs one rollout. To write an agent loop, use `AgentLoop` and `register`."""

from agentrl.agent_loops.base import AgentLoop, agent_loops, register

__all__ = ["AgentLoop", "agent_loops", "register"]
