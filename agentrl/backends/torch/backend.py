"""The torch backend: one Hugging Face causal language model on one device, trained or only read."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from agentrl.algos.aggregation import aggregation_weights
from agentrl.algos.base import LossFunction
from agentrl.backends.base import Scores, StepStats
from agentrl.backends.packing import pack
from agentrl.backends.torch.batches import PaddedSamples, pad_samples, token_batch
from agentrl.backends.torch.checkpoint import random_states, read_state, restore_random_states, save_checkpoint
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.logprobs import token_logprobs
from agentrl.backends.torch.optim import ScheduledOptimizer
from agentrl.backends.torch.recomputing import enable_checkpointing
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.engines.base import WeightStream
from agentrl.errors import ConfigError
from agentrl.models.loading import find_device, load_model, load_tokenizer
from agentrl.samples import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Result = TypeVar("Result")


class TorchBackend:
    """See `Backend`. All work runs on one thread of its own, one call at a time.

    Made by `load_torch_backend`. The tokenizer is only saved. `optimizer` is None for a policy that is only read.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        model_config: ModelConfig,
        config: ActorConfig,
        optimizer: ScheduledOptimizer | None,
    ) -> None:
        self.model, self._tokenizer = model, tokenizer
        self._model_config, self._config, self._optimizer = model_config, config, optimizer
        self._positionwise = PositionwiseModel(model)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch-backend")

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """See `Backend.train_step`. Samples that train nothing at all make a skipped update."""
        return await self._run(lambda: self._train_step(samples, loss))

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """See `Backend.score`."""
        return await self._run(lambda: self._score(samples))

    def weights(self) -> WeightStream:
        """The live weights, detached, not copied: read them before the next update. Tied weights come once."""
        for name, value in [*self.model.named_parameters(), *self._persistent_buffers()]:
            yield name, value.detach()

    async def save(self, path: Path) -> None:
        """See `Backend.save`: a folder that `from_pretrained` loads, with `trainer_state/` in it."""
        await self._run(lambda: self._save(path))

    async def load(self, path: Path) -> None:
        """See `Backend.load`.

        Raises:
            ConfigError: `path` is no checkpoint of this model and optimizer.
        """
        await self._run(lambda: self._load(path))

    async def close(self) -> None:
        """Wait for the call under way and end the thread. A second call does nothing."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        if self._optimizer is None:
            raise RuntimeError("this backend was loaded with trainable=False")
        num_tokens = sum(sample.num_trained_tokens for sample in samples)
        if not num_tokens:
            return StepStats({"num_tokens": 0.0, "num_micro_batches": 0.0, "skipped_updates": 1.0})
        packs = self._pack(samples)
        self._optimizer.clear_gradients()  # of a step that an error ended
        metrics = self._accumulate_gradients(samples, loss, packs, num_tokens)
        counts = {"num_tokens": float(num_tokens), "num_micro_batches": float(len(packs))}
        return StepStats(metrics | counts | self._optimizer.step())

    def _accumulate_gradients(
        self, samples: Sequence[Sample], loss: LossFunction, packs: list[list[int]], num_tokens: int
    ) -> dict[str, float]:
        weights, denominator = aggregation_weights(
            loss.aggregation,
            [sample.num_trained_tokens for sample in samples],
            [sample.rollout_id for sample in samples],
            loss.norm_length,
        )
        sums: defaultdict[str, Tensor | float] = defaultdict(float)
        for indices in packs:
            batch = pad_samples([samples[index] for index in indices], self.model.device)
            logprobs_N, entropy_N = self._forward(batch, entropy_gradient=loss.needs_entropy)
            row_weights = [weights[index] for index in indices]
            value, metrics = loss(token_batch(batch, logprobs_N, entropy_N, row_weights, denominator))
            torch.autograd.backward(value)
            sums["loss"] += value.detach()
            for name, mean in metrics.items():
                sums[name] += mean * (len(batch.rows) / num_tokens)
        return {name: float(value) for name, value in sums.items()}  # read here only, so the device never waits before

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample]) -> Scores:
        scores = Scores([[]] * len(samples), [[]] * len(samples))
        for indices in self._pack(samples):
            batch = pad_samples([samples[index] for index in indices], self.model.device)
            logprobs_N, entropy_N = self._forward(batch, entropy_gradient=False)
            logprobs, entropy = batch.spread(logprobs_N).tolist(), batch.spread(entropy_N).tolist()
            for row, index in enumerate(indices):
                length = len(samples[index].token_ids)
                scores.logprobs[index], scores.entropy[index] = logprobs[row][:length], entropy[row][:length]
        return scores

    def _pack(self, samples: Sequence[Sample]) -> list[list[int]]:
        lengths = [len(sample.token_ids) for sample in samples]
        return pack(lengths, self._config.ppo_max_token_len_per_gpu, self._config.ppo_micro_batch_size_per_gpu)

    def _forward(self, batch: PaddedSamples, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        model = self._positionwise
        with self._autocast():
            # the last column predicts nothing
            states_NH = model.states(batch.token_ids[:, :-1], batch.mask[:, :-1], batch.rows, batch.columns - 1)
            return token_logprobs(
                model.logits,
                states_NH,
                batch.targets,
                batch.temperatures,
                model.vocab_size,
                entropy_gradient=entropy_gradient,
            )

    def _autocast(self) -> AbstractContextManager[None]:
        if self._config.autocast not in ("bfloat16", "float16"):
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=getattr(torch, self._config.autocast))

    def _persistent_buffers(self) -> list[tuple[str, Tensor]]:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        return [(name, value) for name, value in self.model.state_dict().items() if name not in parameters]

    def _save(self, path: Path) -> None:
        state = {"optimizer": self._optimizer and self._optimizer.state_dict(), "random": random_states()}
        save_checkpoint(path, self.model, self._tokenizer, state)

    def _load(self, path: Path) -> None:
        state = read_state(path)
        saved = load_model(self._model_config, path, torch.device("cpu"))  # the device need not hold it twice
        self.model.load_state_dict(saved.state_dict())
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        restore_random_states(state["random"])


def load_torch_backend(
    model: ModelConfig, actor: ActorConfig, *, total_updates: int, seed: int, trainable: bool = True
) -> TorchBackend:
    """Load a model to train, or with `trainable=False` only to read, such as a reference policy.

    Args:
        total_updates: updates over which the schedule runs down, where `actor.optim.total_updates` gives no other.
        seed: of torch's generators, for models that draw random numbers.

    Raises:
        ConfigError: the model or device cannot be used.
    """
    torch.manual_seed(seed)
    loaded = load_model(model, model.path, find_device(actor.device, "actor.device")).requires_grad_(trainable)
    tokenizer = load_tokenizer(model)
    if not trainable:
        return TorchBackend(loaded, tokenizer, model, actor, None)
    if loaded.dtype == torch.float16 or actor.autocast == "float16":
        raise ConfigError("float16 gradients underflow: train in bfloat16, or in float32 with actor.autocast=bfloat16")
    if model.enable_gradient_checkpointing:
        enable_checkpointing(loaded)
    optimizer = ScheduledOptimizer(loaded, actor.optim, actor.grad_clip, total_updates)
    return TorchBackend(loaded, tokenizer, model, actor, optimizer)
