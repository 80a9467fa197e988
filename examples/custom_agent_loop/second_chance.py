"""A custom agent loop: if the model answers without having called a tool, it is reminded and tries again.

    agentrl eval +experiment=calculator \
        rollout.agent.default_agent_loop=examples/custom_agent_loop/second_chance.py:SecondChance

Rows cannot name code, so a row can select this loop only by a name listed in `rollout.agent.agent_loop_config_path`.
"""

from agentrl.agent_loops import AgentLoop, register

REMINDER = {"role": "user", "content": "Use a tool first."}


@register("second_chance")
class SecondChance(AgentLoop):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        while turn := await chat.model_turn():  # None once a limit of rollout.multi_turn is reached
            if turn.calls:
                await chat.tool_turn(turn)
            elif chat.tool_calls:
                break
            else:  # `restart` begins a new trajectory; tokens copied into its prompt are not trained on again
                chat = chat.restart([*chat.trajectory.messages, REMINDER])
        return chat.rollout()
