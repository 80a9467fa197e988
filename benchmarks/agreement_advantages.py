"""Compare advantages with verl's and TRL's on random batches in float64.

A case holds an input for a peer (verl or TRL) and agentrl's result. In `cases`, the peer must give the same result. In
`differences`, the peer is known to give another result; each of these cases has a reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from agreement_losses import Case, Numbers

from agentrl.algos import estimate_advantages

WIDTH = 10
Batch = dict[str, object]

ONE = "a group of one keeps its raw score or the whitened score; agentrl gives 0: there is no other rollout"
EQUAL = "whitening shifts groups of equal rewards, so their rollouts get an advantage without a reason; agentrl gives 0"
ALPHA = "alpha divides by the number of rewards that are not 0; agentrl and the paper by the rollouts with a gradient"
LOST = (
    "a reward on an untrained last token, as after a truncated tool answer, is lost; agentrl moves it to the last"
    " trained token"
)
EPSILON = "1e-4 is added to the std; agentrl adds 1e-6, the paper nothing"
BY_ROLLOUT = (
    "the last normalisation counts each rollout once, as in the paper; agentrl counts each trained token, as verl does"
)


@dataclass(frozen=True)
class Difference:
    """A case in which the peer's result differs from agentrl's, with the reason."""

    case: Case
    reason: str


def make_batch(
    seed: int,
    sizes: tuple[int, ...],
    *,
    binary: bool = False,
    scale: float = 1.0,
    width: int = WIDTH,
    ends_in_tool: bool = False,
) -> Batch:
    """Return groups of `sizes` rollouts, one row per rollout.

    The critic's values are random at all positions, also at positions outside the mask (tool spans).
    """
    draw = random.Random(seed)
    number = sum(sizes)
    mask = [_mask(draw, width, ends_in_tool) for _ in range(number)]
    exact = [scale * draw.gauss(0, 1) for _ in range(number)]
    if binary:  # every group has right and wrong rollouts
        exact = [float(place == 0 or (place > 1 and draw.random() < 0.5)) for size in sizes for place in range(size)]
    rewards = [[0.0] * width for _ in range(number)]
    for row, trained, reward in zip(rewards, mask, exact, strict=True):
        row[-1 if ends_in_tool else max(index for index, each in enumerate(trained) if each)] = reward
    return {
        "uids": [f"task {group}" for group, size in enumerate(sizes) for _ in range(size)],
        "mask": mask,
        "rewards": rewards,
        "values": [[draw.gauss(0, 1) for _ in range(width)] for _ in range(number)],
        "baselines": [draw.gauss(0, 1) for _ in range(number)],
        "components": {"exact": exact, "format": [scale * draw.gauss(0, 1) for _ in range(number)]},
        "valid": [True] * number,
    }


def _mask(draw: random.Random, width: int, ends_in_tool: bool) -> list[bool]:
    mask = [draw.random() < 0.6 for _ in range(width)]
    mask[draw.randrange(max(1, width - 1))] = True
    return [*mask[:-1], False] if ends_in_tool else mask


def _with_equal_group(batch: Batch) -> Batch:
    """Return a copy of the batch with equal rewards in the first group."""
    first = [index for index, uid in enumerate(batch["uids"]) if uid == batch["uids"][0]]
    rewards = [[0.5 * bool(each) for each in row] if n in first else row for n, row in enumerate(batch["rewards"])]
    components = {
        key: [0.5 if n in first else each for n, each in enumerate(values)]
        for key, values in batch["components"].items()
    }
    return {**batch, "rewards": rewards, "components": components}


EVEN, UNEVEN = (4, 4, 4, 4), (2, 5, 3, 4)
BATCHES: list[Batch] = [
    *(make_batch(seed, EVEN) for seed in range(3)),
    *(make_batch(seed, UNEVEN) for seed in range(3, 6)),
    make_batch(6, (1, 4, 3)),
    _with_equal_group(make_batch(7, EVEN)),
    make_batch(8, EVEN, binary=True),
    make_batch(9, EVEN, ends_in_tool=True),
    make_batch(10, EVEN, scale=1e5),
    {**make_batch(11, EVEN), "valid": [number % 5 != 0 for number in range(16)]},
    make_batch(12, EVEN, width=1, scale=1e5),
]
PLAIN, ONE_ALONE, ONE_EQUAL, BINARY, ENDS_IN_TOOL, LARGE, FAILED, ONE_TOKEN = range(6), 6, 7, 8, 9, 10, 11, 12

KEYS = {"gdpo_reward_keys": ["exact", "format"]}
WEIGHTS = {**KEYS, "gdpo_reward_weights": [1.0, 0.3]}
Asked = tuple[str, str, dict[str, object], dict[str, object]]
VERL: list[Asked] = [
    # row of the table, verl's name, verl's options, agentrl's options
    ("grpo", "grpo", {"norm_adv_by_std_in_grpo": True}, {}),
    ("grpo", "grpo_vectorized", {}, {}),
    ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}, {}),
    ("grpo_passk", "grpo_passk", {}, {}),
    ("grpo_passk", "grpo_passk", {"norm_adv_by_std_in_grpo": False}, {"norm_adv_by_std": False}),
    ("rloo", "rloo", {}, {}),
    ("rloo", "rloo_vectorized", {}, {}),
    ("remax", "remax", {}, {}),
    ("reinforce_plus_plus", "reinforce_plus_plus", {"gamma": 1.0}, {}),
    ("reinforce_plus_plus", "reinforce_plus_plus", {"gamma": 0.9}, {"gamma": 0.9}),
    ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", {}, {}),
    ("opo", "opo", {}, {}),
    ("gpg", "gpg", {}, {}),
    ("gdpo", "gdpo", KEYS, KEYS),
    ("gdpo", "gdpo", WEIGHTS, WEIGHTS),
    ("gae", "gae", {"gamma": 1.0, "lam": 1.0}, {}),
    ("gae", "gae", {"gamma": 0.9, "lam": 0.8}, {"gamma": 0.9, "lam": 0.8}),
]
RETURNS = ("remax", "reinforce_plus_plus", "gae")
WHITENED = ("reinforce_plus_plus_baseline", "gdpo")


def cases() -> Iterator[Case]:
    """Yield the cases in which the peer's result and agentrl's result must agree."""
    for asked in VERL:
        in_question = [*PLAIN, LARGE]
        in_question += [] if asked[0] in WHITENED else [ONE_EQUAL] if asked[0] != "gpg" else []
        in_question += [] if asked[0] == "gpg" else [BINARY]
        in_question += [] if asked[0] in RETURNS else [ENDS_IN_TOOL]
        yield from (_verl(asked, batch) for batch in in_question)
    yield _trl("grpo", "grpo", {}, LARGE)
    for batch in (*PLAIN[:3], LARGE, FAILED):
        yield _trl("dr_grpo", "grpo", {"scale_rewards": "none"}, batch)
        yield _trl("rloo", "rloo", {}, batch)


def differences() -> Iterator[Difference]:
    """Yield the cases in which the peer's result is known to differ from agentrl's."""
    for asked in VERL:
        row, name, *_ = asked
        if row not in RETURNS and name not in (
            "grpo_passk",
            "rloo_vectorized",
        ):  # for a group of one, grpo_passk raises an error, and rloo_vectorized agrees with agentrl
            yield Difference(_verl(asked, ONE_ALONE), ONE)
        if row in WHITENED:
            yield Difference(_verl(asked, ONE_EQUAL), EQUAL)
        if row in RETURNS:
            yield Difference(_verl(asked, ENDS_IN_TOOL), LOST)
        if row == "gpg":
            yield Difference(_verl(asked, BINARY), ALPHA)
    yield Difference(_trl("grpo", "grpo", {}, PLAIN[0]), EPSILON)
    apart = {"multi_objective_aggregation": "normalize_then_sum"}
    yield Difference(_trl("gdpo", "grpo", apart, ONE_TOKEN, ["exact", "format"]), EPSILON)
    yield Difference(_trl("gdpo", "grpo", apart, PLAIN[0], ["exact", "format"]), BY_ROLLOUT)


def _verl(asked: Asked, batch: int) -> Case:
    row, name, theirs, ours = asked
    question = {"name": name, "options": theirs, "batch": batch}
    return Case(row, "verl", question, _answer(row, ours, batch, by_token=True))


def _trl(row: str, name: str, options: dict[str, object], batch: int, rewards: list[str] | None = None) -> Case:
    question = {"name": name, "options": options, "batch": batch, "rewards": rewards or ["exact"]}
    return Case(row, "trl", question, _answer(row, {}, batch, by_token=False))


def _answer(name: str, options: dict[str, object], batch: int, *, by_token: bool) -> Callable[[], Numbers]:
    """Return a function that computes agentrl's result.

    With `by_token`, the result is the advantages of all trained tokens, followed by their returns. Without `by_token`,
    it is the advantage of each row.
    """

    def answer() -> Numbers:
        read = BATCHES[batch]
        mask = torch.tensor(read["mask"])
        both = estimate_advantages(
            name,
            torch.tensor(read["rewards"], dtype=torch.float64),
            mask,
            read["uids"],
            valid=read["valid"],
            values=torch.tensor(read["values"], dtype=torch.float64),
            baselines=torch.tensor(read["baselines"], dtype=torch.float64),
            components={key: torch.tensor(each, dtype=torch.float64) for key, each in read["components"].items()},
            **options,
        )
        if by_token:
            return [number for each in both for number in each[mask].tolist()]
        return both[0].gather(1, mask.long().argmax(1, keepdim=True))[:, 0].tolist()

    return answer
