"""The training loop. `trainer/protocols.py` describes its components."""

from __future__ import annotations

from agentrl.trainer.protocols import Parts


async def train(parts: Parts) -> int:
    """Collect groups, learn from them and publish the new weights, until the run is finished. Return the last step."""
    step = await parts.after_step.begin()
    async with parts.source.feeding():
        while not parts.after_step.finished(step):
            groups = await parts.source.take(policy_version=step)
            samples = await parts.scorer(parts.algorithm.samples(groups))  # only the scores that the algorithm needs
            samples = parts.algorithm.credit(groups, samples)  # adds advantages, without side effects
            stats = await parts.learner(samples, step)  # the step's hooks, which update the policy
            step += 1
            await parts.publish(step)
            parts.source.published(step)
            await parts.after_step(step, groups, samples, stats)  # stores and logs; validates and saves if due
    return step
