"""Health rules for a run's metrics. Each rule is a pure function of the metrics of the run's first and latest steps.

| rule            | fires when                                                                              |
|-----------------|-----------------------------------------------------------------------------------------|
| skipped_updates | an update of this step was skipped, or its loss or gradient norm is not finite          |
| kl              | KL from the sampling policy above 0.1 nats per token in this step                       |
| clipped         | more than 30 % of the ratios clipped in this step                                       |
| all_zero        | every reward is 0, for 5 steps                                                          |
| all_one         | all rewards are equal and every rollout is a success, for 5 steps                       |
| no_contrast     | every group has equal rewards, for 5 steps, and no step is all zero or all one as above |
| length_limit    | at least 99 % of the rollouts stopped at a limit of tokens or turns, for 3 steps        |
| unused_tools    | an offered tool was not called in the latest 10 steps                                   |
| dead_tools      | 10 or more calls of one tool had a tool error, an infrastructure failure or a timeout   |
|                 | in this step, and no call of this tool succeeded                                        |
| tool_failures   | over 5 steps (10 or more calls in total): above 20 % of the calls timed out or had an   |
|                 | infrastructure failure, or above 50 % had a tool error, or above 50 % were unparsable   |
| failed_rollouts | more than 10 % of the rollouts ended with an error in this step                         |
| infra_failures  | more than 20 % of the rollouts failed for reasons outside the policy, over 5 steps      |
| left_out        | dropped rollouts lower the mean number of tool calls by more than 5 % (estimated), over |
|                 | 5 steps with 10 or more dropped rollouts in total                                       |
| entropy         | entropy (mean of 5 steps) below 10 % of its mean in the first 5 steps, and not learning |
|                 | well                                                                                    |
| critic          | values predict the returns worse than a constant would, for 10 steps                    |
| length          | response length (mean of 5 steps) below 30 % or above 300 % of its mean in the first    |
|                 | 5 steps, and not learning well                                                          |

Learning well: the mean reward of the last 10 steps is above the mean of the 10 steps before them, or at least 90 % of
the rollouts of the last 5 steps are successes. Low entropy or a changed length is healthy if the run learns well. Rules
for the engine are in `engine_rules`, rules for rewards in `reward_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean

from agentrl.reporting.formatting import num_tool_calls, tool_outcomes
from agentrl.reporting.health.engine_rules import ENGINE_RULES
from agentrl.reporting.health.history import NUM_RECENT, History, Metrics, values
from agentrl.reporting.health.reward_rules import REWARD_RULES
from agentrl.telemetry.metrics.critic import EXPLAINED_VAR
from agentrl.telemetry.metrics.policy import CLIPPED, ENTROPY, GRAD_NORM, LOSS, NUM_TOKENS, PPO_KL, SKIPPED_UPDATES
from agentrl.telemetry.metrics.rewards import REWARD, REWARD_STD, SUCCESS, ZERO_VARIANCE
from agentrl.telemetry.metrics.rollouts import (
    CALLS_SHIFT,
    FAILED,
    INFRA_FAILED,
    NUM_DROPPED,
    RESPONSE_LENGTH,
    SCORE_SHIFT,
    TOOL_CALLS,
)
from agentrl.types.rollout import Outcome, Stop

MIN_ENTROPY_RATIO, MIN_LENGTH_RATIO, MAX_LENGTH_RATIO = 0.1, 0.3, 3.0
LIMIT_STEPS, LIMIT_SHARE = 3, 0.99
UNUSED_STEPS = 10
CRITIC_STEPS = 10
MIN_DROPPED = 10
MIN_CALLS, MAX_BROKEN, MAX_WRONG = 10, 0.2, 0.5


def skipped_updates(history: History) -> str | None:
    """An update was skipped, or its loss or gradient norm is not finite."""
    skipped = history.now.get(SKIPPED_UPDATES.name, 0.0) > SKIPPED_UPDATES.highest
    broken = [name for name in (LOSS.name, GRAD_NORM.name) if not math.isfinite(history.now.get(name, 0.0))]
    if not (skipped or broken):
        return None
    if history.now.get(NUM_TOKENS.name) == 0:
        return "an update was skipped: no token of this step is trained; check that rollouts contain sampled tokens"
    what = f"{' and '.join(broken)} not finite" if broken else "an update was skipped"
    return f"{what}: lower actor.optim.lr, or check for overflow in the model's data type"


def kl(history: History) -> str | None:
    """The policy is far from the sampling policy."""
    if not (value := history.now.get(PPO_KL.name, 0.0)) > PPO_KL.highest:
        return None
    return (
        f"KL from the sampling policy is {value:.3g}, above {PPO_KL.highest}: learning rate or number of updates per "
        "step is too high"
    )


def clipped(history: History) -> str | None:
    """Clipping removes much of the gradient."""
    if not (share := history.now.get(CLIPPED.name, 0.0)) > CLIPPED.highest:
        return None
    return f"{share:.0%} of the ratios are clipped: learning rate or number of updates per step is too high"


def all_zero(history: History) -> str | None:
    """Every reward is 0."""
    if not history.all_latest(5, _all_zero):
        return None
    return (
        "every reward is 0, so there is no learning signal: tasks are too hard, or the reward cannot parse the answers"
    )


def all_one(history: History) -> str | None:
    """Every rollout is a success."""
    if not history.all_latest(5, _all_one):
        return None
    return "every rollout is a full success, so there is no learning signal: use harder tasks, or set trainer.stop_when"


def no_contrast(history: History) -> str | None:
    """In every group, all rewards are equal."""
    if not (history.compares and history.all_latest(5, _no_contrast)):
        return None
    return "every group has equal rewards, so all advantages are 0: raise rollout.n, or use tasks of medium difficulty"


def length_limit(history: History) -> str | None:
    """Almost all rollouts stop at a limit."""
    if not history.all_latest(LIMIT_STEPS, lambda metrics: _limited(metrics) >= LIMIT_SHARE):
        return None
    return (
        "almost every rollout stops at a limit of tokens or turns: raise data.max_response_length or the limits of "
        "rollout.multi_turn, or check that the model can end its turn (chat template, stop tokens)"
    )


def unused_tools(history: History) -> str | None:
    """Some tools are never called."""
    steps = [metrics for metrics in history.latest(UNUSED_STEPS) if TOOL_CALLS.name in metrics]
    unused = [name for name in history.tools if not any(each.get(f"tool/{name}/calls") for each in steps)]
    if len(steps) < UNUSED_STEPS or not unused:
        return None
    return (
        f"not called in {UNUSED_STEPS} steps: {', '.join(unused)}; possible causes: the prompt does not mention the "
        "tool, the model cannot write calls (rollout.multi_turn.format), or calls do not raise the reward"
    )


def dead_tools(history: History) -> str | None:
    """No call of a tool succeeds; fires after a single step."""
    dead = []
    for name in history.tools:
        counts = {outcome: history.now.get(f"tool/{name}/{outcome}", 0.0) for outcome in Outcome}
        failed = sum(counts[outcome] for outcome in (Outcome.TOOL_ERROR, Outcome.TIMEOUT, Outcome.INFRA_ERROR))
        if failed >= MIN_CALLS and not counts[Outcome.OK]:
            dead.append(f"{name} ({', '.join(f'{outcome} {count:.0f}' for outcome, count in counts.items() if count)})")
    return f"no call of a tool succeeded: {'; '.join(dead)}: see the first failure in the log" if dead else None


def tool_failures(history: History) -> str | None:
    """Many tool calls fail."""
    steps = history.latest(NUM_RECENT)
    if (total := sum(map(num_tool_calls, steps))) < MIN_CALLS:
        return None
    counts = {outcome: sum(tool_outcomes(step).get(outcome, 0.0) for step in steps) for outcome in Outcome}
    broken = (counts[Outcome.TIMEOUT] + counts[Outcome.INFRA_ERROR]) / total
    if broken > MAX_BROKEN:
        return (
            f"{broken:.0%} of the tool calls time out or have infrastructure errors: check the service behind the tools"
        )
    if (failed := counts[Outcome.TOOL_ERROR] / total) > MAX_WRONG:
        return f"{failed:.0%} of the tool calls raise a tool error: wrong arguments, or a bug in the tool"
    if (unread := counts[Outcome.FORMAT_ERROR] / total) > MAX_WRONG:
        return f"{unread:.0%} of the tool calls cannot be parsed: check that rollout.multi_turn.format fits the model"
    return None


def failed_rollouts(history: History) -> str | None:
    """Many rollouts end with an error."""
    if not (share := history.now.get(FAILED.name, 0.0)) > FAILED.highest:
        return None
    return (
        f"{share:.0%} of the rollouts fail with an error and are dropped: see the first failure of each kind in the log"
    )


def infra_failures(history: History) -> str | None:
    """Many rollouts fail for reasons outside the policy."""
    shares = values(history.latest(NUM_RECENT), INFRA_FAILED.name)
    if not shares or fmean(shares) <= INFRA_FAILED.highest:
        return None
    return (
        f"{fmean(shares):.0%} of the rollouts are dropped because the tools, the reward or the engine fail: check these"
        " components"
    )


def left_out(history: History) -> str | None:
    """Rollouts with many tool calls are dropped more often, so the rest is a biased sample."""
    steps = history.latest(NUM_RECENT)
    if sum(values(steps, NUM_DROPPED.name)) < MIN_DROPPED:
        return None
    shift = sum(values(steps, CALLS_SHIFT.name)) / NUM_RECENT
    if not shift > CALLS_SHIFT.highest:
        return None
    score = sum(values(steps, SCORE_SHIFT.name)) / NUM_RECENT
    return (
        "infrastructure failures drop more rollouts with many tool calls than with few, so the training data are "
        f"biased: without failures the mean number of calls would be {shift:.0%} higher, and the mean score would "
        f"change by {score:+.2g}; repair the service, or let the tool retry (retries)"
    )


def entropy(history: History) -> str | None:
    """Entropy collapsed without a higher reward. Supervised runs are not checked: their entropy should fall."""
    ratio = history.ratio_to_first(ENTROPY.name)
    if REWARD.name not in history.now or ratio is None or ratio >= MIN_ENTROPY_RATIO or history.learning_well():
        return None
    return f"entropy fell to {ratio:.1%} of the first steps, and the reward does not rise: lower actor.optim.lr"


def length(history: History) -> str | None:
    """Responses became much shorter or longer without a higher reward."""
    ratio = history.ratio_to_first(RESPONSE_LENGTH.name)
    if ratio is None or MIN_LENGTH_RATIO <= ratio <= MAX_LENGTH_RATIO or history.learning_well():
        return None
    cause = "the model may give up early" if ratio < 1 else "the model may ramble or repeat itself"
    return f"responses are {ratio:.2g} times as long as in the first steps, and the reward does not rise: {cause}"


def critic(history: History) -> str | None:
    """The critic is worse than a constant."""
    if not history.all_latest(
        CRITIC_STEPS, lambda metrics: metrics.get(EXPLAINED_VAR.name, 0.0) < EXPLAINED_VAR.lowest
    ):
        return None
    return (
        f"for {CRITIC_STEPS} steps the critic's values explain less of the returns than a constant would: lower"
        " critic.optim.lr or critic.ppo_epochs, or train the critic alone first (trainer.critic_warmup)"
    )


RULES: Mapping[str, Callable[[History], str | None]] = {
    rule.__name__: rule
    for rule in (
        *(skipped_updates, kl, clipped, all_zero, all_one, no_contrast),
        *(
            length_limit,
            unused_tools,
            dead_tools,
            tool_failures,
            failed_rollouts,
            infra_failures,
            left_out,
            entropy,
            critic,
            length,
        ),
        *ENGINE_RULES.values(),
        *REWARD_RULES.values(),
    )
}
"""Maps a rule's name to its function, which returns a warning or None."""


def _all_zero(metrics: Metrics) -> bool:
    return metrics.get(REWARD.name) == 0 == metrics.get(REWARD_STD.name)


def _all_one(metrics: Metrics) -> bool:
    return metrics.get(SUCCESS.name) == 1 and metrics.get(REWARD_STD.name) == 0


def _no_contrast(metrics: Metrics) -> bool:
    return metrics.get(ZERO_VARIANCE.name) == 1 and not (_all_zero(metrics) or _all_one(metrics))


def _limited(metrics: Metrics) -> float:
    limits = (Stop.MAX_RESPONSE_TOKENS, Stop.MAX_TURN_TOKENS, Stop.MAX_ASSISTANT_TURNS)
    return sum(metrics.get(f"stop/{stop.value}", 0.0) for stop in limits)
