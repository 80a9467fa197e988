"""Shared prefixes are computed once, with the gradient of plain transformers on one sample at a time."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import FAMILIES, in_float64, make_groups, make_model, save_model
from torch import Tensor

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch import forward
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.backends.torch.batches import micro_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.layout import pack_tokens
from agentrl.backends.torch.logprobs import token_logprobs
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.models.attention import learn_windows
from agentrl.types.sample import Sample

CPU = torch.device("cpu")
Result = tuple[Tensor, Tensor, list[Tensor]]
"""Log-probabilities, entropies, gradients."""


def weigh(logprobs_N: Tensor, entropy_N: Tensor) -> Tensor:
    """A loss in which every token's log-probability and entropy have different weights."""
    numbers_N = torch.arange(len(logprobs_N), dtype=logprobs_N.dtype)
    return (torch.sin(1 + numbers_N) * logprobs_N + 0.3 * torch.cos(numbers_N) * entropy_N).sum()


def one_by_one(model, samples: list[Sample]) -> Result:
    """transformers alone: each complete sample in a forward of its own."""
    logprobs, entropy = [], []
    for sample in samples:
        logits = model(input_ids=torch.tensor([sample.token_ids]), use_cache=False).logits[0]
        for index in (index for index, trained in enumerate(sample.loss_mask) if trained):
            log_softmax = (logits[index - 1] / torch.tensor(sample.temperatures[index]).to(logits)).log_softmax(-1)
            logprobs.append(log_softmax[sample.token_ids[index]])
            entropy.append(-(log_softmax.exp() * log_softmax).sum())
    return finish(model, torch.stack(logprobs), torch.stack(entropy))


def ours(positionwise: PositionwiseModel, samples: list[Sample]) -> Result:
    batch = micro_batch(samples, CPU)
    with positionwise.running():
        logprobs_N, entropy_N = token_logprobs(
            positionwise.features,
            positionwise.states(batch),
            batch.targets,
            batch.temperatures,
            positionwise.vocab_size,
            entropy_gradient=True,
        )
        return finish(positionwise.model, logprobs_N, entropy_N)


def finish(model, logprobs_N: Tensor, entropy_N: Tensor) -> Result:
    model.zero_grad()
    weigh(logprobs_N, entropy_N).backward()
    return logprobs_N.detach(), entropy_N.detach(), [value.grad.clone() for value in model.parameters()]


def assert_same(one: Result, other: Result, tolerance: float) -> None:
    for mine, theirs in zip([*one[:2], *one[2]], [*other[:2], *other[2]], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * max(1.0, float(theirs.abs().max())))


EXACT = ("qwen3", "llama", "mistral", "gemma3_text", "gpt_oss", "gpt_neox", "gpt2")
# families whose softmax or norms transformers computes in float32
IN_FLOAT32 = ("gemma2", "qwen2_moe", "qwen3_moe", "cohere")
TOLERANCE = dict.fromkeys(EXACT, 1e-9) | dict.fromkeys(IN_FLOAT32, 2e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", TOLERANCE)
def test_gradient_equals_transformers_one_sample_at_a_time(family: str):
    model = in_float64(make_model(family))
    if family == "gemma2":
        model.set_attn_implementation("eager")  # transformers' sdpa ignores the soft cap
    positionwise = PositionwiseModel(model, share_prefixes=True)
    assert positionwise.shares_prefixes
    samples = make_groups()
    assert_same(ours(positionwise, samples), one_by_one(model, samples), TOLERANCE[family])


def test_gradient_equals_that_of_padded_rows():
    model = in_float64(make_model())
    shared, plain = (PositionwiseModel(model, share_prefixes=choice) for choice in (True, False))
    assert (shared.shares_prefixes, plain.shares_prefixes) == (True, False)
    assert_same(ours(shared, make_groups()), ours(plain, make_groups()), 1e-9)


@pytest.mark.parametrize("prompts", [((1, 1),), ((7, 1), (3, 1), (12, 1)), ((6, 2),), ((1, 5), (20, 5))])
def test_gradients_are_equal_with_and_without_shared_prefixes(prompts: tuple[tuple[int, int], ...]):
    model = in_float64(make_model("mistral"))
    positionwise = PositionwiseModel(model, share_prefixes=True)
    samples = make_groups(prompts=prompts)
    assert_same(ours(positionwise, samples), one_by_one(model, samples), 1e-9)


def test_shared_prefix_is_computed_once_without_padding():
    samples = [Sample([5, 6, 7, *own], [0, 0, 0] + [1] * len(own), [1.0] * 9, [0.0] * 9) for own in ([1], [2, 3, 4])]
    fork = Sample([5, 6, 7, 2, 9, 9], [0, 0, 0, 1, 0, 1], [1.0] * 6, [0.0] * 6)
    alone = Sample([8, 9, 1, 2], [0, 1, 0, 0], [1.0] * 4, [0.0] * 4)
    tokens = pack_tokens([*samples, samples[1], fork, alone], {}, CPU)
    # the last trained token and the tokens after it predict nothing
    assert tokens.token_ids.tolist() == [5, 6, 7, 2, 3, 9, 8]
    assert tokens.positions.tolist() == [0, 1, 2, 3, 4, 4, 0]
    assert tokens.predictors.tolist() == [2, 2, 3, 4, 2, 3, 4, 2, 5, 6]


TREES = st.lists(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=2, max_size=9), min_size=1, max_size=6)
"""(token, whether it is trained) of samples that may diverge at any token."""


def tree_samples(tree: list[list[tuple[int, bool]]]) -> list[Sample]:
    return [
        Sample(
            [token for token, _ in sample],
            [0, *(int(trained) for _, trained in sample[1:-1]), 1],
            [0.5 + 0.25 * token for token, _ in sample],
            [0.0] * len(sample),
        )
        for sample in tree
    ]


@given(TREES)
def test_every_token_is_predicted_from_the_tokens_before_it(tree):
    samples = tree_samples(tree)
    tokens = pack_tokens(samples, {}, CPU)
    trained = [(sample, index) for sample in samples for index, mask in enumerate(sample.loss_mask) if mask]
    before = [sample.token_ids[index - 1] for sample, index in trained]
    assert tokens.token_ids[tokens.predictors].tolist() == before
    assert tokens.positions[tokens.predictors].tolist() == [index - 1 for _, index in trained]
    beginnings = {tuple(sample.token_ids[: end + 1]) for sample in samples for end in range(len(sample.token_ids) - 1)}
    assert len(tokens.token_ids) == len(beginnings)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_gradient_of_samples_that_fork_anywhere(family: str):
    model = in_float64(make_model(family))
    positionwise = PositionwiseModel(model, share_prefixes=True)

    @settings(max_examples=15)
    @given(TREES)
    def check(tree):
        samples = tree_samples(tree)
        assert_same(ours(positionwise, samples), one_by_one(model, samples), 1e-9)

    check()


def load(path: Path, *, checkpointing: bool = False, **actor: object) -> TorchBackend:
    config = ActorConfig.model_validate({"optim": {"lr": 1e-2}, "device": "cpu", **actor})
    model = ModelConfig(path=str(path), enable_gradient_checkpointing=checkpointing)
    return load_torch_backend(model, config, total_updates=10, seed=0)


def gradients(backend: TorchBackend, samples: list[Sample], loss: PolicyLoss) -> list[Tensor]:
    caught: list[Tensor] = []
    step, parameters = backend._optimizer.step, list(backend.model.parameters())
    backend._optimizer.step = lambda: caught.extend(value.grad.clone() for value in parameters) or step()
    asyncio.run(backend.train_step(samples, loss))
    asyncio.run(backend.close())
    return caught


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("family", "loss"),
    [("qwen3", PolicyLoss("sft")), ("gpt_neox", PolicyLoss("vanilla", aggregation="seq-mean-token-mean"))],
    ids=["sft", "vanilla"],
)
def test_updates_equal_padded_rows_for_any_split(family: str, loss: PolicyLoss, tmp_path: Path):
    path, samples = save_model(tmp_path, family, torch.float64), make_groups()
    plain = gradients(load(path, share_prefixes=False), samples, loss)
    tolerance = 1e-9 if family != "qwen3" else 1e-6  # Qwen3's norms are computed in float32
    for cut in ({}, {"ppo_max_token_len_per_gpu": 40}, {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 3}):
        for mine, theirs in zip(gradients(load(path, **cut), samples, loss), plain, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("share_prefixes", [True, False])
def test_number_of_micro_batches_is_reported(share_prefixes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, samples = save_model(tmp_path), make_groups()

    def count(**cut: object) -> float:
        backend = load(path, share_prefixes=share_prefixes, **cut)
        return asyncio.run(backend.train_step(samples, PolicyLoss("sft"))).metrics["num_micro_batches"]

    assert len(samples) == 9
    assert count(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=2, ppo_max_token_len_per_gpu=1) == 5
    assert count(ppo_micro_batch_size_per_gpu=1) == 9
    assert count() == 1
    monkeypatch.setattr("agentrl.backends.torch.batches.CPU_TOKENS", 30)
    assert count() > 1


def test_the_backward_pass_may_run_on_another_thread(tmp_path: Path):
    backend = load(save_model(tmp_path), checkpointing=True)
    model, batch = backend._positionwise, micro_batch(make_groups(), CPU)
    results = []
    for run in (lambda work: work(), on_a_thread):
        backend.model.zero_grad()
        with model.running():
            loss = model.states(batch).square().mean()
            run(loss.backward)
        results.append([value.grad.clone() for value in backend.model.parameters() if value.grad is not None])
    assert len(results[0]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def on_a_thread(work) -> None:
    failures = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == []


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_autocast_stays_near_float32(family: str):
    model = make_model(family)
    positionwise = PositionwiseModel(model, share_prefixes=True)
    samples = make_groups(prompts=((9, 3), (5, 1)))
    exact = ours(positionwise, samples)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, plain = ours(positionwise, samples), one_by_one(model, samples)
    assert not torch.equal(low[0], exact[0])
    # no further from the exact result than transformers itself under autocast
    for number in (0, 1):
        assert (low[number] - exact[number]).abs().mean() < 1.5 * (plain[number] - exact[number]).abs().mean()


def test_scores_equal_those_of_padded_rows(tmp_path: Path):
    path, samples = save_model(tmp_path), make_groups()
    silent = replace(samples[0], loss_mask=[0] * len(samples[0].token_ids))
    scores = [asyncio.run(load(path, share_prefixes=choice).score([*samples, silent])) for choice in (True, False)]
    for mine, theirs in zip(
        scores[0].logprobs + scores[0].entropy, scores[1].logprobs + scores[1].entropy, strict=True
    ):
        assert mine == pytest.approx(theirs, abs=2e-5)
    assert scores[0].logprobs[-1] == [0.0] * len(silent.token_ids)


def blend(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Mixes each token with the token before it: a state that is not KV, as in a convolution."""
    return output + torch.nn.functional.pad(output, (0, 0, 1, 0))[:, :-1]


def stretch(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Different values if a row is longer than a sample; each value depends on its token alone."""
    return output * (1 + output.shape[1] / 1000)


def faint(model, dtype: torch.dtype):
    """The same model with weights so small that its layers hardly change their input."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(0.02)
    return model.to(dtype)


def assert_runs_as_before(model, why: str, caplog: pytest.LogCaptureFixture) -> PositionwiseModel:
    with caplog.at_level(logging.WARNING):
        positionwise = PositionwiseModel(model, share_prefixes=True)
    assert not positionwise.shares_prefixes
    assert [why in record.message for record in caplog.records if "once per sample" in record.message] == [True]
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks for module in model.modules() if isinstance(module, torch.nn.Embedding))
    return positionwise


def test_models_with_logits_at_all_positions_cannot_share_prefixes(caplog: pytest.LogCaptureFixture):
    positionwise = assert_runs_as_before(model := make_model("opt"), "its logits are computed at all positions", caplog)
    assert_same(ours(positionwise, make_groups()), one_by_one(model, make_groups()), 1e-3)


@pytest.mark.parametrize("hook", [blend, stretch])
def test_other_numbers_are_noticed(hook, caplog: pytest.LogCaptureFixture):
    model = make_model("llama")
    model.model.layers[0].mlp.register_forward_hook(hook)
    positionwise = assert_runs_as_before(model, "its logits would differ", caplog)
    if hook is blend:
        assert_same(ours(positionwise, make_groups()), one_by_one(model, make_groups()), 1e-3)


SEES = "a sample would attend to tokens of other samples"


@pytest.mark.parametrize(("dtype", "why"), [(torch.float32, "its logits would differ"), (torch.bfloat16, SEES)])
def test_leaks_between_samples_are_detected(dtype: torch.dtype, why: str, caplog: pytest.LogCaptureFixture):
    model = faint(make_model("llama"), dtype)
    model.model.layers[0].mlp.register_forward_hook(blend)
    assert_runs_as_before(model, why, caplog)


HYBRIDS = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 0,
        "mlp_only_layers": [0, 1],
    },
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", HYBRIDS)
def test_layers_without_attention_do_not_share(
    family: str, dtype: torch.dtype, scale: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(FAMILIES, family, HYBRIDS[family])
    model = make_model(family)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.ndim >= 2 else 1.0)
    assert_runs_as_before(model.to(dtype), "1 of its 2 layers use", caplog)
    monkeypatch.setattr(forward, "windows_of_all_layers", learn_windows)
    # so that only the last check can notice the difference
    monkeypatch.setattr(forward, "difference", lambda actual, expected: 0.0)
    caplog.clear()
    assert_runs_as_before(model, SEES, caplog)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", TOLERANCE)
def test_bfloat16_models_share_prefixes(family: str):
    assert PositionwiseModel(make_model(family).bfloat16(), share_prefixes=True).shares_prefixes
    assert PositionwiseModel(faint(make_model(family), torch.bfloat16), share_prefixes=True).shares_prefixes


def test_out_of_memory_does_not_select_a_fallback():
    def fail(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.shape[1] > 20:  # a packed row
            raise torch.OutOfMemoryError("no room")

    model = make_model("llama")
    model.model.layers[0].mlp.register_forward_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        PositionwiseModel(model, share_prefixes=True)


def test_weights_that_are_not_finite_are_named(tmp_path: Path):
    model = make_model()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"not finite.*'model\.layers\.1\.mlp\.up_proj\.weight'") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
