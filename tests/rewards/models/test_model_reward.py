"""The reward `reward_model` with real checkpoints: its scores, and errors for conversations it cannot score."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import load_reward
from agentrl.tools.base import InfraError

PROMPT = [{"role": "user", "content": "What is 6*7?"}]
ANSWERS = ["The answer is 42", "I do not know", "The answer is 41. No, it is 42, which is six times seven."]


@pytest.fixture(scope="module")
def folder(task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The calculator's model and tokenizer, with a random head."""
    path = tmp_path_factory.mktemp("reward_model")
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(task_folder / "model", num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(task_folder / "model").save_pretrained(path)
    return path


def config(folder: Path, **options: object) -> RewardConfig:
    section = {"path": str(folder), "device": "cpu", **options}
    return RewardConfig.model_validate({"name": "reward_model", "reward_model": section})


def score(config: RewardConfig, answers: list[str], **extra: object) -> list[dict[str, float]]:
    async def work() -> list[dict[str, float]]:
        reward = load_reward(config)
        info = {"index": 3, "prompt": PROMPT, **extra}
        try:
            return await asyncio.gather(*(reward("sums", answer, None, info) for answer in answers))
        finally:
            close_reward(reward)

    return asyncio.run(work())


@torch.no_grad()
def by_transformers(folder: Path, answer: str) -> float:
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template([*PROMPT, {"role": "assistant", "content": answer}], tokenize=False)
    return float(model(input_ids=torch.tensor([tokenizer.encode(text)])).logits[0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 1])
def test_scores_equal_transformers_in_any_batch(folder, batch_size):
    together = [each["score"] for each in score(config(folder, batch_size=batch_size), ANSWERS)]
    alone = [score(config(folder), [answer])[0]["score"] for answer in ANSWERS]
    assert together == pytest.approx(alone, abs=1e-5)
    assert together == pytest.approx([by_transformers(folder, answer) for answer in ANSWERS], abs=1e-5)
    assert len(set(together)) == 3
    if batch_size == 1:
        assert together == alone


def test_sigmoid_and_verdict_scores_follow_the_logit(folder):
    logits = [each["score"] for each in score(config(folder), ANSWERS)]
    squashed = score(config(folder, activation="sigmoid"), ANSWERS)
    assert [each["score"] for each in squashed] == pytest.approx(torch.tensor(logits).sigmoid().tolist())
    assert [each["logit"] for each in squashed] == pytest.approx(logits)
    verdicts = score(config(folder, activation="verdict"), ANSWERS)
    assert [each["score"] for each in verdicts] == [float(logit >= 0) for logit in logits]


def test_the_policys_tokens_are_read_as_they_are(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = [*PROMPT, {"role": "assistant", "content": ANSWERS[0]}]
    ids = tokenizer.encode(tokenizer.apply_chat_template(said, tokenize=False))
    (found,) = score(config(folder, input="tokens"), ["whatever"], conversation=said, token_ids=ids)
    assert found["score"] == pytest.approx(by_transformers(folder, ANSWERS[0]), abs=1e-5)
    (shorter,) = score(config(folder, input="tokens"), ["whatever"], conversation=said, token_ids=ids[:-3])
    assert shorter["score"] != pytest.approx(found["score"], abs=1e-3)


def test_texts_have_no_tokens(folder):
    with pytest.raises(RewardError, match=r"row 3\): .*these are texts: set input=chat"):
        score(config(folder, input="tokens"), ["x"])


def test_tokens_of_another_vocabulary_are_refused(folder):
    with pytest.raises(RewardError, match=r"row 3\): token 10000000 is outside the reward model's vocabulary of \d+"):
        score(config(folder, input="tokens"), ["x"], conversation=PROMPT, token_ids=[10**7])


def test_too_long_conversations_are_never_cut(folder):
    with pytest.raises(
        RewardError, match=r"row 3\): the conversation has \d+ tokens.* at most 8: .*too_long=leave_out"
    ):
        score(config(folder, max_length=8), ANSWERS[:1])
    with pytest.raises(InfraError, match=r"row 3\): the conversation has \d+ tokens"):
        score(config(folder, max_length=8, too_long="leave_out"), ANSWERS[:1])


def test_conversation_longer_than_the_model_positions(folder):
    with pytest.raises(ConfigError, match=r"reward\.reward_model\.max_length=1000000 is more than the \d+ positions"):
        load_reward(config(folder, max_length=10**6))


def test_nan_score_is_an_error_with_the_row(folder, monkeypatch):
    monkeypatch.setattr("agentrl.rewards.models.scorer.last_scalars", lambda model, rows: [float("nan")] * len(rows))
    with pytest.raises(RewardError, match=r"data source 'sums', row 3\): its score is nan"):
        score(config(folder), ANSWERS[:1])


def test_reward_model_path_is_required():
    with pytest.raises(ConfigError, match=r"reward\.reward_model\.path must be given"):
        load_reward(RewardConfig.model_validate({"name": "reward_model"}))


def test_reward_model_works_as_a_component(folder):
    components = {
        "model": {"reward": "reward_model", "weight": 0.5, "reward_kwargs": {"path": str(folder), "device": "cpu"}},
        "match": {"reward": "exact_match", "weight": 0},
    }

    async def work() -> dict[str, float]:
        mixed = load_reward(RewardConfig.model_validate({"components": components}))
        try:
            return await mixed("sums", ANSWERS[0], ANSWERS[0], {"index": 3, "prompt": PROMPT, "last_turn": ANSWERS[0]})
        finally:
            close_reward(mixed)

    found = asyncio.run(work())
    assert found["model"] == pytest.approx(by_transformers(folder, ANSWERS[0]), abs=1e-5)
    assert found["score"] == pytest.approx(0.5 * found["model"])
    assert found["match"] == 1
