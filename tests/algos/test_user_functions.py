"""An error in a user's estimator or loss, or a wrong return value, becomes one line with file and line number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS, estimate_advantages
from agentrl.algos.losses.registry import POLICY_LOSSES, policy_loss
from agentrl.algos.preference.losses import PREFERENCE_LOSSES, preference_loss
from agentrl.errors import ConfigError

MASK = torch.tensor([[False, True, True], [False, True, False]])
HERE = r"test_user_functions\.py:\d+\)$"


@pytest.fixture(autouse=True)
def registries_as_they_were(monkeypatch):
    for registry in (ADVANTAGE_ESTIMATORS, POLICY_LOSSES, PREFERENCE_LOSSES):
        monkeypatch.setattr(registry, "_objects", {**registry._objects})


def estimate(function):
    ADVANTAGE_ESTIMATORS.register("own")(function)
    return estimate_advantages("own", MASK.float(), MASK, ["u", "u"])


def lose(function):
    POLICY_LOSSES.register("own")(function)
    logprobs = torch.full(MASK.shape, -1.0, requires_grad=True)
    return policy_loss("own", logprobs, logprobs.detach(), torch.ones(MASK.shape), MASK)


def prefer(function):
    PREFERENCE_LOSSES.register("own")(function)
    return preference_loss("own", torch.zeros(2), torch.zeros(2), beta=0.1)


def failing(batch):
    raise ZeroDivisionError("no\nscores")


@pytest.mark.parametrize(
    ("run", "what"),
    [(estimate, "advantage estimator"), (lose, "policy loss"), (prefer, "preference loss")],
)
def test_user_exceptions_are_one_line(run, what):
    with pytest.raises(ConfigError, match=rf"^{what} 'own' failed: ZeroDivisionError: no scores \(.*{HERE}"):
        run(failing)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda batch: batch.token_rewards, r"must return \(advantages, returns\), not a Tensor of shape \[2, 3\]"),
        (lambda batch: (batch.token_rewards,) * 3, "not a tuple of 3"),
        (lambda batch: (batch.token_rewards, None), "must return returns as a tensor, not a NoneType"),
        (lambda batch: (batch.token_rewards[:, 0],) * 2, r"returned advantages of shape \[2\], expected \[2, 3\]"),
        (lambda batch: (batch.loss_mask, batch.loss_mask), "as torch.bool, expected floating point"),
        (lambda batch: (batch.token_rewards / 0,) * 2, "returned advantages that are not finite on trained tokens"),
    ],
)
def test_invalid_estimator_results_are_errors(answer, complaint):
    with pytest.raises(ConfigError, match=rf"^advantage estimator 'own' .*{complaint} \(.*{HERE}"):
        estimate(answer)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda batch: batch.logprobs, r"must return \(losses, metrics\), metrics a dict, not a Tensor"),
        (lambda batch: (batch.logprobs.mean(), {}), r"returned losses of shape \[\], expected \[2, 3\]"),
        (lambda batch: (batch.logprobs.detach(), {}), "returned losses without a gradient"),
        (lambda batch: (batch.logprobs * float("nan"), {}), "returned losses that are not finite on trained tokens"),
        (lambda batch: (batch.logprobs, {"kl": 1.0}), "must return the metric 'kl' as a tensor, not a float"),
    ],
)
def test_invalid_loss_results_are_errors(answer, complaint):
    with pytest.raises(ConfigError, match=rf"^policy loss 'own' .*{complaint}.*{HERE}"):
        lose(answer)


def test_values_off_the_mask_are_ignored():
    def infinite_elsewhere(batch) -> tuple[Tensor, Tensor]:
        return (batch.token_rewards.masked_fill(~batch.loss_mask, torch.inf),) * 2

    advantages, _ = estimate(infinite_elsewhere)
    assert advantages[MASK].tolist() == [1, 1, 1]
