"""Check each row's step, split, group and number, and that uids and seeds derive from the run's seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise, product

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo, derived_seed

SHARED = (
    "messages",
    "ground_truth",
    "data_source",
    "index",
    "agent_name",
    "tools_kwargs",
    "interaction_kwargs",
    "extra_info",
)
"""Task columns: equal for all rollouts of a group."""

_BATCH_SHRINKS_BY = 64
"""Assumed maximum factor by which a resumed run reduced its batch size. A factor that is too large does no harm: the
audit tries more epochs, and a wrong uid matches none of them.
"""


def check_step(check: Checker, split: str | None) -> None:
    """Check step and split of every row."""
    step = check.step
    check.require("step", "step", step["step"] == step.number, f"{step.number} (file name)")
    expected = split or Counter(step["split"]).most_common(1)[0][0] if len(step) else ""
    good = np.array([found == expected for found in step["split"]], np.bool_)
    check.require("step", "split", good, split or f"{expected} (as in most rows of the step)")


def check_groups(check: Checker, known: RunInfo, split: str) -> list[range]:
    """Check groups and return their rows. A group has contiguous rows of one uid; each uid occurs in one group only."""
    groups = groups_of(check.step["uid"])
    check.ledger.count("groups", len(check.step))
    seen = set[str]()
    for rows in groups:
        _check_group(check, rows, seen)
    size = known.number("rollout.n" if split == "train" else "rollout.val_kwargs.n")
    if size is None or known.why_not_run:
        check.ledger.skip("groups", f"group size: {known.why_not_run or NO_CONFIG}", len(groups))
        return groups
    for rows in groups:
        if len(rows) != size:
            check.problem("groups", rows[0], "uid", f"{size} rollouts with this uid", f"{len(rows)}")
    count = int(known.number("data.train_batch_size") or 0)
    minimum = 1 if _may_be_less(check, known) else count
    if split == "train" and not minimum <= len(groups) <= count:
        check.problem("groups", 0, "uid", f"{count} groups", f"{len(groups)}")
    return groups


def _may_be_less(check: Checker, known: RunInfo) -> bool:
    """Whether a step may have fewer groups than configured.

    This is true for the last step of a run in mode `rollout_only`. It is true for all steps if dynamic sampling
    (`algorithm.filter_groups`) has a maximum number of generated batches.
    """
    filtering = "algorithm.filter_groups"
    if known.get(f"{filtering}.enable") and known.number(f"{filtering}.max_num_gen_batches"):
        return True
    rows_are_all = known.mode == "rollout_only" and not known.get("trainer.total_training_steps")
    return rows_are_all and not check.step.path.with_name(f"step-{check.step.number + 1:06d}.parquet").exists()


def groups_of(uids: Sequence[str]) -> list[range]:
    """Ranges of contiguous rows with the same uid."""
    starts = [row for row in range(len(uids)) if row == 0 or uids[row] != uids[row - 1]]
    return [range(start, end) for start, end in pairwise([*starts, len(uids)])] if starts else []


def _check_group(check: Checker, rows: range, seen: set[str]) -> None:
    uid = check.step["uid"][rows[0]]
    if uid in seen:
        check.problem("groups", rows[0], "uid", "adjacent rows for each uid", uid)
    seen.add(uid)
    for number, row in enumerate(rows):
        if (found := int(check.step["rollout"][row])) != number:
            check.problem("groups", row, "rollout", f"{number} (position in the group)", found)


def check_siblings(check: Checker, groups: Sequence[range]) -> None:
    """Report each task value that differs from the most frequent value in its group; after a tie, report all values."""
    step = check.step
    check.ledger.count("siblings", sum(len(rows) for rows in groups if len(rows) > 1))
    for column in SHARED:
        values = step[column]
        for rows in groups:
            in_group = [values[row] for row in rows]
            if len(set(in_group)) > 1:
                _report_odd(check, column, rows, in_group)


def _report_odd(check: Checker, column: str, rows: range, values: Sequence[object]) -> None:
    (most, count), *_ = Counter(values).most_common()
    tie = list(Counter(values).values()).count(count) > 1
    for row, value in zip(rows, values, strict=True):
        if tie or value != most:
            check.problem("siblings", row, column, "the same value in the whole group" if tie else most, value)


def check_identity(check: Checker, known: RunInfo, split: str, groups: Sequence[range]) -> None:
    """Check uids and seeds.

    A training uid derives from (run seed, epoch, row, whether the group was restarted), a validation uid from the row.
    A rollout's seed derives from the run's seed, the uid and the rollout's number in its group.
    """
    run_seed = known.get("trainer.seed")
    if not isinstance(run_seed, int):
        check.ledger.skip("identity", NO_CONFIG, len(check.step))
        return
    step = check.step
    base, sampled = derived_seed(run_seed, split), step["seed"].tolist()
    check.ledger.count("identity", len(step))
    for row, (uid, number) in enumerate(zip(step["uid"], step["rollout"].tolist(), strict=True)):
        if (expected := _seed(known, base, uid, number)) != sampled[row]:
            check.problem("identity", row, "seed", expected, sampled[row])
    if known.continued_from is not None:
        check.ledger.skip("identity", f"uid: {known.why_not_run}", len(groups))
    elif split == "val":
        for rows in groups:
            _check_uid(check, rows, [f"val-{step['index'][rows[0]]}"])
    elif known.get("data.filter_overlong_prompts"):
        check.ledger.skip("identity", "uid: data.filter_overlong_prompts changes row numbers", len(step))
    else:
        _check_train_uids(check, run_seed, known, groups)


def _seed(known: RunInfo, base: int, uid: str, number: int) -> int:
    """Return the expected seed of a rollout.

    If a replay continued a saved rollout, the new seed derives from the seed of the saved rollout.
    """
    if known.continued_from is None:
        return derived_seed(base, uid, number)
    saved_uid, _, saved_number = uid.rpartition("/")
    if not saved_number.isdecimal():
        return -1
    return derived_seed(derived_seed(base, saved_uid, int(saved_number)), "from-turn", known.continued_from, number)


def _check_train_uids(check: Checker, run_seed: int, known: RunInfo, groups: Sequence[range]) -> None:
    """Check training uids. The epoch is not saved, so all possible epochs are tried.

    The largest possible epoch is the largest possible number of draws, divided by the smallest possible number of rows.
    The exact number of draws is unknown, because a run may have been resumed with a smaller batch.
    """
    step = check.step
    indices = [int(step["index"][rows[0]]) for rows in groups]
    draws = _BATCH_SHRINKS_BY * max(step.number, 1) * len(groups)
    weighted = bool(known.get("data.dataset_weights"))
    last_epoch = draws if weighted else draws // max(1, max(indices, default=0) + 1)
    drawings = (0, 1)  # 1: the group was restarted because it became stale during its rollouts
    likely = 0
    for rows, index in zip(groups, indices, strict=True):
        uid = step["uid"][rows[0]]
        for epoch, draw in product(chain([likely], range(last_epoch + 1)), drawings):
            if f"{derived_seed(run_seed, 'uid', epoch, index, draw):016x}" == uid:
                likely = epoch
                break
        else:
            _check_uid(check, rows, [f"a uid of row {index}, epoch 0 to {last_epoch}"])


def _check_uid(check: Checker, rows: range, expected: Sequence[str]) -> None:
    if (uid := check.step["uid"][rows[0]]) not in expected:
        check.problem("identity", rows[0], "uid", expected[0], uid)
