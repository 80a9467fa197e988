"""Training on several ranks equals training in one process."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_processes import DEVICE, NUM_RANKS, ROUNDING, on_cpu, run_again
from tiny_models import make_groups, make_samples, save_model
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.algos.losses.value import ValueLoss
from agentrl.backends import on_ranks
from agentrl.backends.base import Backend, ModelRequest
from agentrl.backends.fsdp.assignment import assign, imbalance
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.torch.backend import load_scalar_backend, load_torch_backend
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch
from agentrl.backends.torch.shards import SHARDS
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError
from agentrl.registry import load_object
from agentrl.types.sample import Sample

FSDP_SIZE = os.environ.get("FSDP_SIZE_OF_TESTS")
pytestmark = pytest.mark.minutes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_model(tmp_path_factory.mktemp(name), name) for name in ("qwen3", "qwen3_moe", "llama")}


def make_request(path: Path, *, value_head: bool = False, model: dict | None = None, **actor: object) -> ModelRequest:
    optim = {"lr": 1e-2, "lr_warmup_steps": 2, "eps": 1e-3}  # a small eps would amplify rounding errors
    common = {"optim": optim, "device": DEVICE, "ppo_micro_batch_size_per_gpu": 2, "fsdp_size": FSDP_SIZE}
    config = ActorConfig.model_validate({**common, **actor})
    section = ModelConfig.model_validate({"path": str(path), **(model or {})})
    return ModelRequest(section, config, total_updates=10, value_head=value_head)


def in_one_process(request: ModelRequest):
    load = load_scalar_backend if request.value_head else load_torch_backend
    return load(request.model, request.actor, total_updates=10, seed=0)


def gradients_on_ranks(backend: FsdpBackend, samples: list[Sample], loss) -> dict[str, torch.Tensor]:
    """Gradients of all parameters, before the optimizer has used them."""
    batch = mini_batch(samples, loss)
    parts = assign(samples, backend._ranks.size, loss.scope)
    arguments = [(backend._number, batch, own, loss) for own in parts]
    found = backend._ranks.each(accumulated, arguments)
    return found[0]


def accumulated(ranks: Ranks, number: int, batch, own, loss) -> dict[str, torch.Tensor]:
    model = ranks.held[number]
    model.accumulate(*((batch, own) if loss.scope == "batch" else (batch.part(own), range(len(own)))), loss)
    named = {name: value.grad for name, value in model.model.named_parameters() if value.grad is not None}
    return {name: grad.full_tensor().cpu() for name, grad in named.items()}


LOSSES = {
    "row": PolicyLoss("vanilla"),
    "rollout": PolicyLoss("gmpo"),
    "batch": PolicyLoss("kl_cov"),
    "sequence mean": PolicyLoss("vanilla", aggregation="seq-mean-token-mean"),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "llama"])
@pytest.mark.parametrize("reshard", [True, False])
def test_every_gradient_equals_that_of_one_process(ranks, folders, family, name, reshard):
    request = make_request(folders[family], reshard_after_forward=reshard)
    loss, samples = LOSSES[name], make_samples(7)
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    assert backend._model._positionwise.shares_prefixes is alone._positionwise.shares_prefixes is True
    found = gradients_on_ranks(backend, samples, loss)
    with alone._positionwise.running():
        accumulate_gradients(alone._positionwise, mini_batch(samples, loss), loss, alone._cut(samples))
    expected = {name: value.grad.cpu() for name, value in alone.model.named_parameters() if value.grad is not None}
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        assert (found[parameter] - gradient).norm() <= ROUNDING * gradient.norm() + 1e-9, parameter
    asyncio.run(backend.close())


@pytest.mark.slow
def test_metrics_of_a_loss_over_rollouts_are_means_over_all_ranks(ranks, folders):
    request, loss = make_request(folders["llama"]), PolicyLoss("gspo")
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    found, expected = (asyncio.run(each.train_step(make_samples(7), loss)).metrics for each in (backend, alone))
    for name in expected.keys() - {"num_micro_batches"}:
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name
    asyncio.run(backend.close())


@pytest.mark.slow
@pytest.mark.skipif(NUM_RANKS == 1, reason="one rank has nothing to sum")
def test_gradients_are_summed_in_float32_under_autocast(ranks, folders):
    request = make_request(folders["llama"], autocast="bfloat16")
    backend = FsdpBackend(ranks, request, seed=0)
    found = gradients_on_ranks(backend, make_samples(2), PolicyLoss("vanilla"))
    assert any((each != each.bfloat16().float()).any() for each in found.values())
    asyncio.run(backend.close())


@pytest.mark.slow
def test_gradients_with_replayed_experts_equal_those_of_one_process(ranks, folders):
    draw, samples = torch.Generator().manual_seed(0), make_samples(7)
    config = AutoConfig.from_pretrained(folders["qwen3_moe"])
    for number, sample in enumerate(samples[1:], start=1):  # the first one has no recorded experts
        shape = (len(sample.token_ids) - 1, config.num_hidden_layers, config.num_experts)
        experts = torch.rand(shape, generator=draw).topk(config.num_experts_per_tok).indices.to(torch.uint8)
        samples[number] = replace(sample, routed_experts=experts)
    request, loss = replace(make_request(folders["qwen3_moe"]), routed_by="rollout"), PolicyLoss("vanilla")
    backend = FsdpBackend(ranks, request, seed=0)
    alone = load_torch_backend(request.model, request.actor, total_updates=10, seed=0, routed_by="rollout")
    found, own = gradients_on_ranks(backend, samples, loss), gradients_on_ranks(backend, make_samples(7), loss)
    with alone._positionwise.running():
        accumulate_gradients(alone._positionwise, mini_batch(samples, loss), loss, alone._cut(samples))
    assert any((found[name] - own[name]).norm() > 0.01 * own[name].norm() for name in own)
    for name, value in alone.model.named_parameters():
        if value.grad is not None:
            assert (found[name] - value.grad.cpu()).norm() <= ROUNDING * value.grad.norm() + 1e-9, name
    asyncio.run(backend.close())


def with_returns(sample: Sample) -> Sample:
    """The sample with values and returns, as a critic needs them."""
    masked = [0.5 * trained for trained in sample.loss_mask]
    return replace(sample, values=masked, returns=[2 * value for value in masked])


def returned(num_samples: int, seed: int = 0) -> list[Sample]:
    return [with_returns(sample) for sample in make_samples(num_samples, seed)]


def ten_steps(backend: Backend, loss) -> list[dict[str, float]]:
    batches = [[with_returns(sample) for sample in make_groups(step)] for step in range(10)]
    return [asyncio.run(backend.train_step(samples, loss)).metrics for samples in batches]


MUON = {"optim": {"name": "muon", "lr": 1e-2, "lr_warmup_steps": 2, "eps": 1e-3}}
CASES = {
    "muon": ("llama", {}, MUON),
    "plain": ("llama", {}, {}),
    "lora": ("llama", {"model": {"lora_rank": 4, "lora_alpha": 32}}, {}),
    "gradient checkpointing": ("qwen3", {"model": {"enable_gradient_checkpointing": True}}, {}),
    "critic": ("llama", {"value_head": True}, {}),
    "padded rows": ("llama", {}, {"share_prefixes": False}),
    "offload": ("llama", {}, {"param_offload": True}),
    "a copy per rank": ("llama", {}, {"fsdp_size": 1}),
    "complete": ("llama", {}, {"reshard_after_forward": False}),
    "complete, lora": ("llama", {"model": {"lora_rank": 4, "lora_alpha": 32}}, {"reshard_after_forward": False}),
    "complete, frozen": ("llama", {}, {"freeze_modules": ["model.layers.0"], "reshard_after_forward": False}),
    "complete, critic": ("llama", {"value_head": True}, {"reshard_after_forward": False}),
    "frozen": ("llama", {}, {"freeze_modules": ["model.layers.0"]}),
}


@pytest.mark.slow
@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", [case for case in CASES if case != "muon"])
def test_ten_steps_equal_those_of_one_process(ranks, folders, case):
    family, options, actor = CASES[case]
    request = make_request(folders[family], **options, **actor)
    loss = ValueLoss(0.5, "token-mean", 10) if request.value_head else PolicyLoss("vanilla")
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    for found, expected in zip(ten_steps(backend, loss), ten_steps(alone, loss), strict=True):
        for name in ("loss", "grad_norm", "lr", "num_tokens"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    weights = dict(backend.weights())
    for name, value in on_cpu(alone.weights()):
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    asyncio.run(backend.close())


def place_each_on_its_own_node(ranks, own):
    ranks._nodes = [*range(ranks.size)] if own else [0] * ranks.size
    ranks.bucket = torch.empty(0, dtype=torch.uint8)


@pytest.mark.slow
def test_weights_from_other_nodes_are_complete(ranks, folders):
    request = make_request(folders["llama"])
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    ranks.each(place_each_on_its_own_node, [(True,)] * ranks.size)
    try:
        found = dict(backend.weights())
    finally:
        ranks.each(place_each_on_its_own_node, [(False,)] * ranks.size)
    for name, value in on_cpu(alone.weights()):
        assert torch.equal(found[name], value), name
    asyncio.run(backend.close())


@pytest.mark.slow
def test_streamed_weights_equal_their_copies(ranks, folders):
    backend = FsdpBackend(ranks, make_request(folders["llama"]), seed=0)
    weights = backend.weights()
    copies = dict(weights)
    for name, value in weights.passing():
        assert torch.equal(value, copies[name]), name
    assert weights.shapes() == {name: value.shape for name, value in copies.items()}
    assert weights.num_bytes() == sum(value.nbytes for value in copies.values())
    asyncio.run(backend.close())


@pytest.mark.slow
def test_muon_updates_equal_those_of_one_process_in_bfloat16(ranks, folders):
    request = make_request(folders["llama"], **MUON)
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    before = {name: value.clone() for name, value in on_cpu(alone.weights())}
    for each in (backend, alone):
        for seed in range(2):  # the learning rate of the first step is 0
            asyncio.run(each.train_step(make_samples(4, seed), PolicyLoss("vanilla")))
    weights = dict(backend.weights())
    for name, value in on_cpu(alone.weights()):
        # orthogonalisation in bfloat16 amplifies the noise of small singular values
        assert (weights[name] - value).norm() <= 2**-3 * (value - before[name]).norm(), name
    asyncio.run(backend.close())


@pytest.mark.slow
def test_rank_without_samples_joins_collectives(ranks, folders):
    request = make_request(folders["llama"])
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    found, expected = (
        asyncio.run(each.train_step(make_samples(1), PolicyLoss("vanilla"))).metrics for each in (backend, alone)
    )
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert found["rank_imbalance"] == ranks.size
    scores, own = (asyncio.run(each.score(make_samples(1))).logprobs for each in (backend, alone))
    assert scores[0] == pytest.approx(own[0], abs=1e-5)
    asyncio.run(backend.close())


@pytest.mark.slow
def test_a_weight_that_is_not_finite_is_refused_on_every_rank(ranks, folders, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folders["llama"])
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[-1] = float("nan")  # in the part of the last rank
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"not finite.*layers\.1\.mlp\.up_proj"):
        FsdpBackend(ranks, make_request(tmp_path), seed=0)
    backend = FsdpBackend(ranks, make_request(folders["llama"]), seed=0)  # the ranks go on
    asyncio.run(backend.close())


@pytest.mark.slow
def test_an_adapter_is_merged_into_the_weights_for_a_server(ranks, folders):
    request = make_request(folders["llama"], model={"lora_rank": 4, "lora_alpha": 32})
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    for each in (backend, alone):
        asyncio.run(each.train_step(make_samples(4), PolicyLoss("vanilla")))
    expected, found = dict(on_cpu(alone.checkpoint_weights())), dict(backend.checkpoint_weights())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    asyncio.run(backend.close())


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", ["plain", "lora", "critic", "muon", "a copy per rank"])
def test_checkpoints_load_on_any_number_of_ranks(ranks, folders, tmp_path, case):
    family, options, actor = CASES[case]
    request = make_request(folders[family], **options, **actor)
    loss = ValueLoss(0.5, "token-mean", 10) if request.value_head else PolicyLoss("vanilla")
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    for one, folder in ((backend, "several"), (alone, "one")):
        asyncio.run(one.train_step(returned(4), loss))
        asyncio.run(one.save(tmp_path / folder))
        expected = asyncio.run(one.train_step(returned(4, 1), loss)).metrics
        again = [FsdpBackend(ranks, request, seed=1), in_one_process(request)]
        for other in again:
            asyncio.run(other.load(tmp_path / folder))
            found = asyncio.run(other.train_step(returned(4, 1), loss)).metrics
            assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
            assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
            assert found["lr"] == expected["lr"]
            if type(other) is type(one) and DEVICE == "cpu":  # GPUs sum in any order
                assert found == expected
            asyncio.run(other.close())
    asyncio.run(backend.close())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_checkpoint_of_two_copies_loads_on_two_ranks_and_then_in_one_process(ranks, folders, tmp_path):
    script = Path(__file__).parent / "two_copies.py"
    done = subprocess.run([sys.executable, script, folders["llama"], tmp_path], capture_output=True, check=True)
    expected = json.loads(done.stdout)
    written = {path.name: path.stat().st_size for path in (tmp_path / "saved" / SHARDS).glob("*.distcp")}
    request, source = make_request(folders["llama"]), tmp_path / "saved"
    for backend in (FsdpBackend(ranks, request, seed=1), in_one_process(request)):
        asyncio.run(backend.load(source))
        source = tmp_path / "again"
        asyncio.run(backend.save(source))
        found = asyncio.run(backend.train_step(make_samples(5, 1), PolicyLoss("vanilla"))).metrics
        for name in ("loss", "grad_norm", "lr"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-6), name
        asyncio.run(backend.close())
        if isinstance(backend, FsdpBackend):
            again = sum(path.stat().st_size for path in (source / SHARDS).glob("*.distcp"))
            assert sum(written.values()) < 1.1 * again  # each part is written once
        assert (source / "model.safetensors").read_bytes() == (tmp_path / "saved/model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_reference_copies_the_policy_without_collecting_it(ranks, folders, monkeypatch):
    policy, reference = (FsdpBackend(ranks, make_request(folders["llama"]), seed=0) for _ in range(2))
    asyncio.run(policy.train_step(make_samples(3), PolicyLoss("vanilla")))
    collected = on_ranks.collected
    monkeypatch.setattr(on_ranks, "collected", None)  # calling it would fail
    asyncio.run(reference.copy_weights(policy.weights()))
    monkeypatch.setattr(on_ranks, "collected", collected)
    weights = dict(policy.weights())
    assert all(torch.equal(value, weights[name]) for name, value in reference.weights())
    for each in (policy, reference):
        asyncio.run(each.close())


def test_loss_from_a_user_file_is_used_on_every_rank(ranks, tmp_path):
    (tmp_path / "my-loss.py").write_text("def twice(ranks, number):\n    return 2 * number + ranks.rank\n")
    twice = load_object(f"{tmp_path}/my-loss.py:twice")
    assert ranks.each(twice, [(10,)] * ranks.size) == [20 + rank for rank in range(ranks.size)]


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["1", "2", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_fsdp_tests_pass_on_gpus(size):
    run_again(__file__, size, marks="minutes and not nightly", device="cuda")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_no_rank_holds_the_complete_model_while_it_loads(tmp_path):
    script = Path(__file__).parent / "loading_memory.py"
    done = subprocess.run([sys.executable, script, tmp_path, "fsdp"], capture_output=True, text=True, check=True)
    shares = json.loads(done.stdout)["loading"]
    assert len(shares) == 2
    assert max(shares) < 0.75, shares  # half of the weights, and what a layer takes while it is gathered


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_that_a_rank_cannot_write_ends_the_save_on_all_ranks(ranks, folders, tmp_path, rank):
    backend = FsdpBackend(ranks, make_request(folders["llama"]), seed=0)
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))
    blocked = ["model.safetensors", SHARDS / f"__{rank}_0.distcp"][rank]
    (tmp_path / "later" / blocked / "folder").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot write .*later"):
        asyncio.run(backend.begin_save(tmp_path / "later")).result(60)
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))  # the ranks go on
    (tmp_path / "again").mkdir()
    asyncio.run(backend.begin_save(tmp_path / "again")).result(60)
    asyncio.run(backend.load(tmp_path / "again"))
    asyncio.run(backend.close())


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_optimizer_state_written_by_another_version_of_python_is_read(ranks, folders, tmp_path, module):
    """Python 3.13 has the class of paths in another module."""
    request = make_request(folders["llama"])
    backend = FsdpBackend(ranks, request, seed=0)
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))
    asyncio.run(backend.save(tmp_path / "saved"))
    index = tmp_path / "saved" / SHARDS / ".metadata"
    text = pickle.dumps(pickle.loads(index.read_bytes()), protocol=2)  # names classes in plain text
    own = f"c{type(tmp_path).__module__}\nPosixPath\n".encode()
    assert own in text
    index.write_bytes(text.replace(own, f"c{module}\nPosixPath\n".encode()))
    asyncio.run(in_one_process(request).load(tmp_path / "saved"))
    asyncio.run(backend.close())


class Malicious:
    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["code", "another file", "truncated"])
def test_optimizer_state_of_others_runs_no_code(ranks, folders, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    request = make_request(folders["llama"])
    backend, alone = FsdpBackend(ranks, request, seed=0), in_one_process(request)
    asyncio.run(backend.train_step(make_samples(3), PolicyLoss("vanilla")))
    asyncio.run(backend.save(tmp_path / "saved"))
    index = tmp_path / "saved" / SHARDS / ".metadata"
    if name == "truncated":
        index.write_bytes(index.read_bytes()[:1000])
    else:
        found = pickle.loads(index.read_bytes())
        found.planner_data = Malicious() if name == "code" else None
        for info in found.storage_data.values():
            info.relative_path = info.relative_path if name == "code" else "/dev/zero"
        index.write_bytes(pickle.dumps(found))
    for each in (backend, alone):
        with pytest.raises(ConfigError, match="incomplete or corrupt"):
            asyncio.run(each.load(tmp_path / "saved"))
    assert not (tmp_path / "harmed").exists()
    asyncio.run(backend.close())


@pytest.mark.slow
def test_adapter_with_another_scale_is_refused(ranks, folders, tmp_path):
    saved, other = (
        FsdpBackend(ranks, make_request(folders["llama"], model={"lora_rank": 4, "lora_alpha": alpha}), seed=0)
        for alpha in (32, 8)
    )
    asyncio.run(saved.save(tmp_path / "saved"))
    with pytest.raises(ConfigError, match="lora_alpha=32"):
        asyncio.run(other.load(tmp_path / "saved"))
    for each in (saved, other):
        asyncio.run(each.close())


def test_samples_are_split_by_tokens_with_groups_kept_together():
    samples = make_groups()
    ranks = assign(samples, 2, "group")
    assert sorted(index for own in ranks for index in own) == list(range(len(samples)))
    uids = [{samples[index].uid for index in own if samples[index].uid} for own in ranks]
    assert not uids[0] & uids[1]
    assert imbalance(samples, assign(samples, 2)) <= 1.34
    assert assign([], 3) == [[], [], []]


ON_TWO_ONLY = "offload or frozen or checkpointing or code or version_of or split or holds or two_copies or sequence"
ON_THREE = f"not ({ON_TWO_ONLY} or qwen3-rollout or qwen3-batch or llama-rollout or moe-batch)"
"""What depends on the number of ranks, such as parts of different sizes."""
ON_FOUR = f"not ({ON_TWO_ONLY}) and (plain or lora or -row or copies or complete or muon or rank_without)"
"""What depends on two copies of a model in parts."""


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["not nightly", pytest.param("nightly", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("size", "selected"),
    [
        ({"RANKS_OF_TESTS": "3"}, "every_gradient_equals or metrics_of_a_loss"),
        pytest.param({"RANKS_OF_TESTS": "3"}, ON_THREE, marks=pytest.mark.nightly),
        pytest.param({"RANKS_OF_TESTS": "4", "FSDP_SIZE_OF_TESTS": "2"}, ON_FOUR, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_fsdp_tests_pass_on_more_ranks(size, selected, cases):
    command = [sys.executable, "-m", "pytest", "-q", "-m", f"not gpu and {cases}", "-k", selected, __file__]
    done = subprocess.run(command, env={**os.environ, **size}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
