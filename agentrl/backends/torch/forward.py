"""Compute the outputs of a model at chosen positions only.

Axes: B rows, T tokens, N chosen positions, H hidden size, F features of a head.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from agentrl.backends.torch.batches import LossOf, MicroBatch, OnePass, Outputs, at_once, micro_batch, padded
from agentrl.backends.torch.heads import Features, Head, LanguageHead
from agentrl.backends.torch.layout import PackedTokens, own_slice, pack_tokens
from agentrl.backends.torch.peers import ALL_POSITIONS, SequencePeers
from agentrl.backends.torch.recorded_experts import by_path, padded_experts, padded_paths
from agentrl.backends.torch.routing_replay import RoutingReplay
from agentrl.backends.torch.self_check import (
    LONGEST,
    check_apart,
    difference,
    probe_samples,
    tolerance,
    unfaithful,
    watched_embeddings,
)
from agentrl.backends.torch.shared_attention import SHARED
from agentrl.models.attention import UnfaithfulError, attention_implementation, configs_of, windows_of_all_layers
from agentrl.models.loading import max_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
FLEX_DEVICES = {"cuda"}
"""Device types on which packed tokens use FlexAttention. On a CPU, torch cannot compute the gradient of
FlexAttention."""
FLEX_SCALE = 20
"""Scale of the probe samples that test FlexAttention: the longest sample then has several blocks of tokens."""


class PositionwiseModel:
    """A causal model, split into its body (`states`, at chosen positions) and its head (`outputs`, from these states).

    The body runs on packed tokens, in which common prefixes of samples are computed once, or on right-padded rows. The
    rows need no mask, because causal attention ignores padding on the right. If the model cannot be split, body and
    head run together on padded rows. Each mode is checked once, on a small batch. The model uses the first mode that
    passes its check: packed tokens, padded rows, or not split.

    Args:
        share_prefixes: whether packed tokens are used if the model passes their check.
        flex: whether packed tokens use FlexAttention, which copies no keys, on the devices of FLEX_DEVICES.
        autocast: dtype in which `outputs` are computed; None: the dtype of the weights.
        replay: object that applies the recorded experts of samples, or records experts; None: neither.
        head: the head to read; None: a language model head.
        one_pass: runs a computation that uses body and head. For a sharded model, it runs the computation inside the
            root module's forward pass.
        device: the device on which passes compute; None: the device of the weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        share_prefixes: bool,
        flex: bool = True,
        autocast: torch.dtype | None = None,
        replay: RoutingReplay | None = None,
        head: Head | None = None,
        one_pass: OnePass = at_once,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.device = model, device or model.device
        self.head = head or LanguageHead(model)
        self._replay = replay
        self._recorded: list[list[Tensor]] = []
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self._name = type(model).__name__
        self._configs = configs_of(model)
        self._autocast_dtype = autocast
        self._windows: Mapping[int, int | None] | None = None
        self._as_tree = False
        self._tail: Features | None = None
        self._pass: OnePass = one_pass
        self._sequence: SequencePeers = ALL_POSITIONS
        self._choose(share_prefixes, flex)

    @property
    def splits(self) -> bool:
        """Whether body and head of the model can run separately."""
        return self._tail is not None

    @property
    def shares_prefixes(self) -> bool:
        """Whether the model runs on packed tokens, which requires a trained token in every sample."""
        return self._windows is not None

    @property
    def copies_keys(self) -> bool:
        """Whether packed samples copy the keys of a shared prefix. FlexAttention copies no keys."""
        return not self._as_tree

    def copy_keys(self) -> None:
        """From now on do not use FlexAttention."""
        self._as_tree = False

    def divide_positions(self, peers: SequencePeers) -> None:
        """From now on compute only this process's slice of the packed tokens; requires `shares_prefixes`.

        All `peers` compute the same micro-batches. `outputs` still returns the outputs of all trained tokens.
        """
        self._sequence = peers

    @contextmanager
    def recording(self, wanted: bool) -> Iterator[list[list[Tensor]]]:
        """If wanted, record for each pass the experts of each sample's `used_tokens`, [T', layers, top k]."""
        self._recorded = []
        with self._replay.recording() if wanted and self._replay is not None else nullcontext():
            yield self._recorded
        self._recorded = []  # the caller has the yielded list

    def running(self) -> AbstractContextManager[None]:
        """Context of forward passes, and of backward passes, in which checkpointed layers run again."""
        return attention_implementation(self._configs, SHARED) if self.shares_prefixes else nullcontext()

    def states(self, batch: MicroBatch) -> Tensor:
        """States that predict the trained tokens, [N, H]; features instead, [N, F], if the model is not split."""
        if self._windows is not None:
            return self._packed_states(self._packed(batch, self._windows))
        # the last column predicts nothing
        token_ids_BT = padded([sample.token_ids for sample in batch.samples], torch.long)[:, :-1].to(self.device)
        num_columns, chosen = token_ids_BT.shape[1], (batch.rows, batch.columns - 1)
        with self._routed(padded_experts(batch.samples, num_columns), padded_paths(batch.samples, num_columns)):
            if self._tail is not None:
                return cast(Tensor, self.model.base_model(input_ids=token_ids_BT, use_cache=False)[0][chosen])
            mask_BT = padded([[1] * len(sample.token_ids) for sample in batch.samples], torch.long)[:, :-1]
            return self.head.whole(token_ids_BT, mask_BT.to(self.device))[chosen]

    def features(self, states_NH: Tensor) -> Tensor:
        """Compute features, [N, F], from the result of `states`."""
        return states_NH if self._tail is None else self._tail(states_NH)

    def outputs(self, batch: MicroBatch, *, entropy_gradient: bool) -> Outputs:
        """Compute all outputs of the head, [N] each, see `Head.read`; under autocast if configured."""
        with self._autocast():
            if self._windows is not None and self._sequence.size > 1:
                windows = self._windows
                return self._pass(lambda: self._divided(batch, windows, entropy_gradient=entropy_gradient))
            return self._pass(
                lambda: self.head.read(self.features, self.states(batch), batch, entropy_gradient=entropy_gradient)
            )

    def run(self, batches: Iterable[MicroBatch], loss_of: LossOf, *, entropy_gradient: bool) -> None:
        """Run a forward pass of each micro-batch, and a backward pass from each loss that `loss_of` returns."""
        for number, batch in enumerate(batches):
            loss = loss_of(number, self.outputs(batch, entropy_gradient=entropy_gradient))
            if loss is not None:
                torch.autograd.backward(loss)

    def _divided(self, batch: MicroBatch, windows: Mapping[int, int | None], *, entropy_gradient: bool) -> Outputs:
        """Compute the outputs of the tokens that this process predicts, and join them with its peers' outputs."""
        tokens, own_N = own_slice(self._packed(batch, windows), self._sequence)
        temperatures = None if batch.temperatures is None else batch.temperatures[own_N]
        own = replace(batch, targets=batch.targets[own_N], temperatures=temperatures)
        found = self.head.read(self.features, self._packed_states(tokens), own, entropy_gradient=entropy_gradient)
        return {name: self._sequence.joined(values, own_N) for name, values in found.items()}

    def _autocast(self) -> AbstractContextManager[None]:
        device = self.device.type
        return torch.autocast(device, dtype=self._autocast_dtype) if self._autocast_dtype else nullcontext()

    def _packed(self, batch: MicroBatch, windows: Mapping[int, int | None]) -> PackedTokens:
        return pack_tokens(batch.samples, windows, self.device, as_tree=self._as_tree)

    def _packed_states(self, tokens: PackedTokens) -> Tensor:
        with self._routed(tokens.routed_experts, tokens.paths):
            output = self.model.base_model(
                input_ids=tokens.token_ids[None],
                position_ids=tokens.positions[None],
                use_cache=False,
                packed_layout=tokens.layout,
            )
        return cast(Tensor, output[0][0].index_select(0, tokens.predictors))

    @contextmanager
    def _routed(self, experts_MLK: Tensor | None, paths: Sequence[Tensor]) -> Iterator[None]:
        """Run a pass with these experts; if `recording`, keep the experts that the tokens of each path used."""
        if self._replay is not None:
            self._replay.give(experts_MLK)
        yield
        if self._replay is not None and self._replay.is_recording:
            experts_MLK = self._sequence.every_position(self._replay.recorded())
            self._recorded.append(by_path(experts_MLK, paths))

    @torch.no_grad()
    def _choose(self, share_prefixes: bool, flex: bool) -> None:
        samples = probe_samples(self.vocab_size)
        batch = micro_batch(samples, self.device)
        whole = self._tried(batch)["features"]
        alone = torch.cat([self._tried(micro_batch([sample], self.device))["features"] for sample in samples])
        self._tail = self.head.tail()
        if self._tail is not None and not self._splits_like(batch, whole):
            self._tail = None
            logger.warning(
                "%s: logits are computed at all positions, because they differ when computed at some positions only",
                self._name,
            )
        if share_prefixes:
            self._share(batch, alone, tolerance(whole, alone))
        if flex and self.shares_prefixes and self.device.type in FLEX_DEVICES:
            self._use_flex()

    def _tried(self, batch: MicroBatch) -> Outputs:
        """Run the model once in the current mode."""

        def compute() -> Outputs:
            states = self.states(batch)
            return {"states": states, "features": self.features(states)}

        return self._pass(compute)

    def _share(self, batch: MicroBatch, alone: Tensor, most: float) -> None:
        try:
            with unfaithful():
                if not self.splits:
                    raise UnfaithfulError("its logits are computed at all positions")
                windows: dict[int, int | None] = {}
                self._pass(lambda: windows.update(windows_of_all_layers(self.model)) or {})
                self._windows = windows
                self._check_packed(batch, alone, most)
        except UnfaithfulError as error:
            self._windows = None
            logger.warning("%s: shared prefixes are computed once per sample (%s)", self._name, error)

    def _use_flex(self) -> None:
        """Use FlexAttention if it gives the same results, up to rounding, as attention that copies keys.

        Both are computed in the data type of training.
        """
        scale = min(FLEX_SCALE, (max_positions(self.model.config) or FLEX_SCALE * LONGEST) // LONGEST)
        batch = micro_batch(probe_samples(self.vocab_size, scale), self.device)
        try:
            with self._autocast(), unfaithful():
                with self.running():
                    copied = self._tried(batch)["features"]
                self._as_tree = True
                self._check_packed(batch, copied, tolerance(copied, copied))
        except UnfaithfulError as error:
            self._as_tree = False
            logger.warning("%s: attention copies shared keys, because FlexAttention failed (%s)", self._name, error)

    def _check_packed(self, batch: MicroBatch, alone: Tensor, most: float) -> None:
        tokens = pack_tokens(batch.samples, {}, CPU)
        with self.running(), torch.enable_grad(), watched_embeddings(self.model) as embeddings:
            for row, sample in enumerate(batch.samples):
                found = self._tried(batch)  # a sharded model can run backward only once after each forward pass
                apart = difference(found["features"].detach(), alone)
                if not apart <= most:  # the condition is also true for NaN
                    raise UnfaithfulError(f"its logits would differ by {apart:.1e}, more than {most:.1e}")
                check_apart(found["states"], batch.rows == row, embeddings.pop(), sample, tokens)

    def _splits_like(self, batch: MicroBatch, whole: Tensor) -> bool:
        try:
            with unfaithful():
                return difference(self._tried(batch)["features"], whole) <= tolerance(whole, whole)
        except UnfaithfulError:
            return False  # the head needs more than the body's last hidden states
