"""FlexAttention over packed tokens returns what copied keys and plain transformers return."""

from __future__ import annotations

import asyncio
import logging
import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from flex_cases import flex_on_all, flex_on_cpu
from hypothesis import given
from test_fsdp import accumulated, in_one_process, make_request
from test_torch_shared_prefixes import (
    CPU,
    SEES,
    TOLERANCE,
    TREES,
    Result,
    assert_same,
    faint,
    gradients,
    load,
    one_by_one,
    ours,
    tree_samples,
)
from tiny_models import FAMILIES, in_float64, make_groups, make_model, make_samples, save_model
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.fsdp.assignment import assign
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.torch import prefix_tree
from agentrl.backends.torch.batches import cut, micro_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch
from agentrl.backends.torch.layout import pack_tokens
from agentrl.backends.torch.prefix_tree import BLOCK, PrefixTree, tree_attention
from agentrl.config.actor import ActorConfig
from agentrl.types.sample import Sample

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler
MORE = ("llama", "qwen3_moe", "mistral", "gemma2", "gpt_oss")
SEEN = "attention copies shared keys, because FlexAttention failed"


def with_flex(model) -> PositionwiseModel:
    found = PositionwiseModel(model, share_prefixes=True)
    assert not found.copies_keys
    return found


def beginnings(samples: list[Sample]) -> list[tuple[int, ...]]:
    """The beginning that each packed token ends, in the order of the packed tokens."""
    found: dict[tuple[int, ...], None] = {}
    for ids in sorted(tuple(sample.token_ids[:-1]) for sample in samples):
        found |= {ids[: end + 1]: None for end in range(len(ids))}
    return [*found]


@pytest.mark.slow
@given(TREES)
def test_each_token_attends_to_its_path_and_window(tree):
    samples = tree_samples(tree)
    packed, paths = pack_tokens(samples, {}, CPU, as_tree=True), beginnings(samples)
    assert packed.token_ids.tolist() == [path[-1] for path in paths]
    for window in (None, 2):
        mask = create_mask(packed.layout.tree.mask(window, BLOCK).mask_mod, None, None, BLOCK, BLOCK, "cpu")[0, 0]
        for query, path in enumerate(paths):
            seen = {path[: end + 1] for end in range(len(path))[-(window or BLOCK) :]}
            assert [key for key in range(BLOCK) if mask[query, key]] == [paths.index(each) for each in sorted(seen)]
        assert torch.equal(mask[len(paths) :].nonzero()[:, 1], torch.arange(len(paths), BLOCK))  # padding: itself


def long_tree(seed: int) -> PrefixTree:
    draw = random.Random(seed)
    heads = [[draw.randrange(3) for _ in range(draw.choice([5, 200, 400]))] for _ in range(3)]
    rows = [draw.choice(heads) + [draw.randrange(3) for _ in range(draw.choice([2, 50, 300]))] for _ in range(9)]
    samples = [Sample(ids, [0] * (len(ids) - 1) + [1], [1.0] * len(ids), [0.0] * len(ids)) for ids in rows]
    return pack_tokens(samples, {}, CPU, as_tree=True).layout.tree


@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_sorted_as_by_comparing_all_pairs_of_tokens(seed: int):
    tree = long_tree(seed)
    length = -(-len(tree.ends) // BLOCK) * BLOCK
    own = tree.mask(None, length)
    theirs = create_block_mask(own.mask_mod, None, None, length, length, "cpu")
    assert length > 5 * BLOCK
    assert torch.equal(own.kv_num_blocks, theirs.kv_num_blocks)
    assert torch.equal(own.full_kv_num_blocks, theirs.full_kv_num_blocks)
    assert torch.equal(own.to_dense(), theirs.to_dense())
    near = tree.mask(100, length)
    exact = create_block_mask(near.mask_mod, None, None, length, length, "cpu")
    assert (near.to_dense() >= exact.to_dense()).all()  # a block may be computed in vain, but none is left out
    assert (near.full_kv_num_blocks <= exact.full_kv_num_blocks).all()
    assert near.to_dense().sum() < own.to_dense().sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "qwen3",
        *(pytest.param(name, marks=pytest.mark.one_in(4)) for name in MORE),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "gpt_neox", "gpt2", "cohere")),
    ],
)
def test_logprobs_and_gradients_equal_copied_keys_and_single_samples(family: str):
    model = in_float64(make_model(family))
    if family == "gemma2":
        model.set_attn_implementation("eager")  # transformers' sdpa ignores the soft cap
    copied = PositionwiseModel(model, share_prefixes=True)
    with flex_on_cpu():
        flex = with_flex(model)
        for samples in (make_groups(), make_samples(5), make_groups(prompts=((100, 4),)) if family != "gpt2" else []):
            if samples:
                found = ours(flex, samples)
                assert_same(found, ours(copied, samples), TOLERANCE[family])
                assert_same(found, one_by_one(model, samples), TOLERANCE[family])


def relative(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((one - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_gradients_with_gradient_checkpointing(family: str, tmp_path: Path):
    # in float32, plain rows themselves differ by up to 2e-6 from float64, which torch's experts do not support
    dtype = torch.float32 if family == "qwen3_moe" else torch.float64
    path, samples, loss = save_model(tmp_path, family, dtype), make_groups(), PolicyLoss("vanilla")
    copied, padded = (gradients(load(path, share_prefixes=kind), samples, loss) for kind in (True, False))
    with flex_on_cpu():
        backend = load(path, checkpointing=True)
        assert not backend._positionwise.copies_keys
        found = gradients(backend, samples, loss)
    assert relative(found, copied) < 2e-6
    assert relative(found, padded) < 2e-6


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_compiled_functions_with_gradient_checkpointing(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on a GPU, but the compiler's last stage runs torch's operators."""
    counter = CompileCounterWithBackend("aot_eager")
    path, loss = save_model(tmp_path, family, torch.float64), PolicyLoss("vanilla")
    with flex_on_cpu():
        compiled = torch.compile(flex_attention, fullgraph=True, backend=counter)
        monkeypatch.setattr(prefix_tree, "_kernel", lambda device: compiled)
        for samples in (make_groups(), make_groups(prompts=((100, 4), (20, 9))), make_groups(prompts=((90, 9),))):
            backend = load(path, checkpointing=True)
            assert not backend._positionwise.copies_keys
            found = gradients(backend, samples, loss)
            assert relative(found, gradients(load(path, share_prefixes=False), samples, loss)) < 2e-6
    assert 0 < counter.frame_count <= 6


@pytest.mark.slow
def test_autocast_stays_near_float32():
    model, samples = make_model(), make_groups(prompts=((9, 3), (5, 1)))
    exact = ours(PositionwiseModel(model, share_prefixes=True), samples)
    with flex_on_cpu():
        flex = PositionwiseModel(model, share_prefixes=True, autocast=torch.bfloat16)
        assert not flex.copies_keys
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low, plain = ours(flex, samples), one_by_one(model, samples)
    assert not torch.equal(low[0], exact[0])
    for number in (0, 1):
        assert (low[number] - exact[number]).abs().mean() < 1.5 * (plain[number] - exact[number]).abs().mean()


@pytest.mark.slow
def test_it_is_used_on_gpus_only_and_not_if_switched_off(tmp_path: Path):
    path = save_model(tmp_path)
    assert load(path)._positionwise.copies_keys
    with flex_on_cpu():
        assert not load(path)._positionwise.copies_keys
        assert load(path, flex_attention=False)._positionwise.copies_keys
        assert load(path, share_prefixes=False)._positionwise.copies_keys


def leaky(ends: Tensor, positions: Tensor, window: int | None) -> prefix_tree.Mask:
    return lambda batch, head, query, key: key <= query  # as if all packed tokens were one sample


def failing(*arguments: object) -> prefix_tree.Mask:
    raise RuntimeError("no kernel for this shape")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "dtype", "why"),
    [
        (leaky, torch.float32, "its logits would differ"),
        (leaky, torch.bfloat16, SEES),
        (failing, torch.float32, "RuntimeError: no kernel for this shape"),
    ],
)
def test_a_failed_check_falls_back_with_one_notice(
    mask, dtype: torch.dtype, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    model = make_model("llama") if dtype == torch.float32 else faint(make_model("llama"), dtype)
    copied = ours(PositionwiseModel(model, share_prefixes=True), make_groups())
    monkeypatch.setattr(prefix_tree, "_mask", mask)
    with flex_on_cpu(), caplog.at_level(logging.WARNING):
        found = PositionwiseModel(model, share_prefixes=True)
        assert (found.shares_prefixes, found.copies_keys) == (True, True)
        assert all(map(torch.equal, *(each[2] for each in (ours(found, make_groups()), copied))))
    assert [SEEN in record.message and why in record.message for record in caplog.records] == [True]


@pytest.mark.slow
def test_the_check_has_several_blocks_and_stays_below_the_positions_of_the_model(monkeypatch: pytest.MonkeyPatch):
    lengths: list[int] = []
    original = prefix_tree._block_mask
    monkeypatch.setattr(prefix_tree, "_block_mask", lambda *given: lengths.append(len(given[0])) or original(*given))
    longest: list[int] = []
    for limit in (128, 2048):
        monkeypatch.setitem(FAMILIES, "llama", {"max_position_embeddings": limit})
        model = make_model("llama")
        model.model.layers[0].register_forward_pre_hook(
            lambda layer, args, more: longest.append(int(more["position_ids"].max())), with_kwargs=True
        )
        with flex_on_cpu():
            with_flex(model)
        assert max(longest) < limit
    assert max(lengths) >= 4 * BLOCK


def test_memory_for_copied_keys_is_not_counted():
    prompt = list(range(50))
    rows = [[*prompt, number, number + 1] for number in range(8)]
    samples = [Sample(row, [0] * 50 + [1, 1], [1.0] * 52, [0.0] * 52) for row in rows]
    config = ActorConfig(ppo_max_token_len_per_gpu=60)
    for device in (CPU, torch.device("cuda")):
        counted, free = (cut(samples, config, True, device, copies_keys=kind) for kind in (True, False))
        assert (len(counted) > 1, len(free)) == (True, 1)


@pytest.mark.nightly
@pytest.mark.slow
def test_other_lengths_compile_no_further_kernels(monkeypatch: pytest.MonkeyPatch):
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, fullgraph=True, backend=counter)
    monkeypatch.setattr(prefix_tree, "_kernel", lambda device: compiled)
    draw = torch.Generator().manual_seed(0)
    for seed in range(4):
        tree = long_tree(seed)
        query, key, value = (torch.randn(len(tree.ends), heads, 16, generator=draw) for heads in (6, 2, 2))
        for window in (None, 100, 30):
            found = tree_attention(tree, query, key, value, window, 0.2, None, None)
            mod = tree.mask(window, -(-len(query) // BLOCK) * BLOCK).mask_mod
            mask = create_mask(mod, None, None, len(query), len(query), "cpu")[0]
            scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(3, 1)) * 0.2
            weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            torch.testing.assert_close(found, torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(3, 1)))
    assert counter.frame_count <= 4  # full attention and windows: the first length, then any


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("family", "size"), [("llama", 2), ("qwen3_moe", 2), ("qwen3", 1)])
def test_every_gradient_of_two_ranks_equals_that_of_one_process(ranks, family: str, size: int, tmp_path: Path):
    path, samples, loss = save_model(tmp_path, family), [*make_groups(), *make_samples(4)], PolicyLoss("vanilla")
    alone = in_one_process(make_request(path))
    batch, parts = mini_batch(samples, loss), assign(samples, ranks.size // size, loss.scope)
    with flex_on_all(ranks):
        backend = FsdpBackend(ranks, make_request(path, ulysses_sequence_parallel_size=size), seed=0)
        assert not backend._model._positionwise.copies_keys
        found = backend._each_group(accumulated, [(backend._number, batch, own, loss) for own in parts])[0]
        asyncio.run(backend.close())
    with alone._positionwise.running():
        accumulate_gradients(alone._positionwise, batch, loss, alone._cut(samples))
    expected = {name: value.grad for name, value in alone.model.named_parameters() if value.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 2e-6 * gradient.norm() + 1e-9, name


def on_device(positionwise: PositionwiseModel, samples: list[Sample], compute) -> Result:
    """Log-probabilities, entropies and gradients, on the CPU."""
    positionwise.model.zero_grad()
    outputs = compute(positionwise, samples)
    (outputs["logprobs"].sin() + 0.3 * outputs["entropy"].cos()).sum().backward()
    grads = [value.grad.cpu() for value in positionwise.model.parameters()]
    return outputs["logprobs"].detach().cpu(), outputs["entropy"].detach().cpu(), grads


def compute(positionwise: PositionwiseModel, samples: list[Sample]) -> dict[str, Tensor]:
    with positionwise.running():
        return positionwise.outputs(micro_batch(samples, positionwise.device), entropy_gradient=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "mistral", "gemma2", "gpt_oss"])
def test_compiled_kernels_equal_copied_keys_on_a_gpu(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FAMILIES, family, FAMILIES[family] | {"head_dim": 32, "max_position_embeddings": 2048})
    model = make_model(family).to("cuda", dtype)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value *= 50 if "gate.weight" in name else 1  # no token is between two experts
    exact = PositionwiseModel(deepcopy(model).float(), share_prefixes=True, flex=False)
    copied, flex = (PositionwiseModel(model, share_prefixes=True, flex=kind) for kind in (False, True))
    assert (copied.copies_keys, flex.copies_keys) == (True, False)
    for samples in (make_groups(), make_samples(9), make_groups(prompts=((300, 8), (700, 3), (1, 2)))):
        found, expected, true = (flat(on_device(each, samples, compute)) for each in (flex, copied, exact))
        if dtype == torch.float32:
            assert relative(found, expected) < 1e-4
        else:  # a gradient of few numbers, such as a router's bias, differs by chance
            assert relative(found, true) < 2.5 * relative(expected, true)
            assert relative(joined(found), joined(true)) < 1.5 * relative(joined(expected), joined(true))


def joined(found: list[Tensor]) -> list[Tensor]:
    return [torch.cat([value.float().flatten() for value in found])]


def flat(result: Result) -> list[Tensor]:
    return [*result[:2], *result[2]]


@pytest.mark.gpu
def test_gradient_checkpointing_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FAMILIES, "qwen3", FAMILIES["qwen3"] | {"head_dim": 32})
    path, samples, loss = save_model(tmp_path), make_groups(), PolicyLoss("vanilla")
    flex = load(path, device="cuda", checkpointing=True)
    assert not flex._positionwise.copies_keys
    found, expected = (
        gradients(backend, samples, loss) for backend in (flex, load(path, device="cuda", flex_attention=False))
    )
    assert relative(found, expected) < 1e-4
