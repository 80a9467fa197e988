"""GiGPO: compares rollouts, and also turns that start in the same state (Feng et al., arXiv:2505.10978)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, Members, equal, find_members
from agentrl.algos.advantages.normalization import standardised, standardised_in_groups
from agentrl.algos.advantages.sequences import Sequences, discounted_sums, find_sequences, find_turns
from agentrl.errors import ConfigError, Kind

Keys = Sequence[str | None]


def gigpo(
    batch: AdvantageBatch, *, step_advantage_weight: float = 1.0, gamma: float = 0.95, norm_adv_by_std: bool = True
) -> tuple[Tensor, Tensor]:
    """A of turn k = E + weight * S_k. E and S_k are standardised, or centred if `norm_adv_by_std=False` (paper: F = 1).

    E compares the sum of a rollout's rewards (turns and outcome) with the sums of the group's other rollouts. S_k
    compares the turn's discounted return, R_k = r_k + gamma * R_{k+1}, with the returns of all turns of the group that
    start in the same state. The outcome is added to r of the last turn. Equal `observation_keys` mean the same state.
    S_k is 0 if the state occurs only once or is unknown. Example: two rollouts of two turns. The first turns of both
    start in state a, the second turns in states b and c; outcomes 1 and 0, gamma 0.5, centred. Then E = 0.5, -0.5; R =
    0.5, 1 and 0, 0; S = 0.25, 0 and -0.25, 0; so A = 0.75, 0.5 and -0.75, -0.5. A group of one has advantage 0. The
    returns equal the advantages.

    Raises:
        ConfigError: `observation_keys` is missing, or does not have exactly one key per turn of each row.
    """
    members = find_members(batch)
    sequences = find_sequences(batch, members)
    turns = find_turns(sequences)
    rewards = turns.sums(sequences.sums(batch.all_rewards))
    episode = standardised_in_groups(rewards.sum(1, keepdim=True), members.valid[:, None], members, norm_adv_by_std)
    keys = _keys_of_members(batch, sequences, members)
    if not any(key is not None for of_member in keys for key in of_member):
        warn_no_states()
    step = _step_advantages(discounted_sums(rewards, gamma), keys, members, norm_adv_by_std)
    result = sequences.spread(turns.spread(episode + step_advantage_weight * step)).to(batch.token_rewards.dtype)
    return result, result


@cache
def warn_no_states() -> None:
    """Warn once that no turn has a state, so only complete rollouts are compared."""
    logging.getLogger(__name__).warning(
        "gigpo: no turn has an observation_key, so turns are not compared: set it in a TurnReward of the agent loop,"
        " or as 'observation_key' in the data that generate_response of an interaction returns"
    )


def _step_advantages(returns_MK: Tensor, keys: Sequence[Keys], members: Members, by_std: bool) -> Tensor:
    result = torch.zeros_like(returns_MK)
    for group in members.comparable():
        for places in _same_state(group, keys):
            index = tuple(torch.tensor(places, device=result.device).T)
            if not equal(returns_MK[index]):
                result[index] = standardised(returns_MK[index], by_std)
    return result


def _same_state(group: Sequence[int], keys: Sequence[Keys]) -> Iterator[list[tuple[int, int]]]:
    """Yield the (member, turn) pairs of each state."""
    places: dict[str, list[tuple[int, int]]] = {}
    for member in group:
        for turn, key in enumerate(keys[member]):
            if key is not None:
                places.setdefault(key, []).append((member, turn))
    yield from places.values()


def _keys_of_members(batch: AdvantageBatch, sequences: Sequences, members: Members) -> list[list[str | None]]:
    """Return the keys of each valid member's turns over all its rows, `[M][turns]`."""
    if batch.observation_keys is None:
        raise ConfigError.at(
            "algorithm.adv_estimator",
            Kind.MISSING,
            "advantage estimator 'gigpo' needs observation_keys, the state at the start of each turn",
        )
    keys: list[list[str | None]] = [[] for _ in range(len(members.scores))]
    for row, (member, of_row) in enumerate(zip(members.of_row.tolist(), batch.observation_keys, strict=True)):
        if members.valid[member]:
            _check_number(row, of_row, sequences.trained[row])
            keys[member].extend(of_row)
    return keys


def _check_number(row: int, keys: Keys, trained_T: Tensor) -> None:
    num_turns = int(trained_T[:1].sum() + (trained_T[1:] & ~trained_T[:-1]).sum())
    if len(keys) != num_turns:
        raise ConfigError.keyless(
            f"observation_keys has {len(keys)} keys for the {num_turns} turns of row {row}, expected one for each"
        )
