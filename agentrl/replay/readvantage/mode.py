"""`readvantage`: recompute the advantages with another algorithm or reward."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from agentrl.algos.build import build_algorithm
from agentrl.errors import ConfigError
from agentrl.replay.base import Cell, Replay, Result, Table
from agentrl.replay.output.cells import cell_text
from agentrl.replay.readvantage.credit_tally import Side, Tally
from agentrl.replay.readvantage.recredit import Credit, recompute_credit
from agentrl.replay.settings import CREDIT_CODE, refuse_missing_code, replay_config
from agentrl.stats.base import plain

NUM_LARGEST = 10


def readvantage(replay: Replay) -> Result:
    """Recompute the advantages of the saved groups and compare them with the saved advantages.

    Advantages change because of overrides, such as `algorithm.norm_adv_by_std_in_grpo=false`, and because of the scores
    of an earlier `rescore`. Without overrides and new scores, the result equals the saved advantages bit for bit.

    Raises:
        ConfigError: the algorithm cannot be built; the algorithm is custom code that the command line does not name; or
            `--reward` is given, but `rescore` did not run before this mode.
        DataError: the rollouts have no tokens or no advantages.
    """
    if replay.options.rewards and not replay.scores:
        raise ConfigError.keyless(
            "--reward needs 'rescore' before 'readvantage': agentrl replay RUN rescore readvantage"
        )
    refuse_missing_code(replay, CREDIT_CODE)
    tally = Tally(NUM_LARGEST)
    for group in recompute_credit(replay, build_algorithm(replay_config(replay))):
        tally.add(group)
    summary = [_summary(tally), *([f"with the scores of {next(iter(replay.scores))}"] if replay.scores else [])]
    if not replay.run.config:
        summary.append("the run has no saved configuration: keys without an override have agentrl's defaults")
    return Result("readvantage", "; ".join(summary), list(_tables(tally)), _values(tally))


def _summary(tally: Tally) -> str:
    if tally.identical:
        return f"the advantages of {tally.num_rollouts:,} rollouts are bitwise equal to the saved ones"
    sizes = " to ".join(cell_text(side.mean_size) for side in (tally.before, tally.after))
    rollouts = f"{tally.num_sign_changed_rollouts:,} of {tally.num_rollouts:,} rollouts"
    tokens = f"{tally.num_sign_changed_tokens:,} of {tally.num_tokens:,} tokens"
    silent = f"{tally.num_lost_signal:,} groups lose their signal, {tally.num_gained_signal:,} gain one"
    return f"mean |advantage| {sizes}; the sign changes for {rollouts} and {tokens}; {silent}"


def _tables(tally: Tally) -> Iterator[Table]:
    rows: list[tuple[str, Cell, Cell]] = [
        (label, before, after)
        for (label, before), (_, after) in zip(_figures(tally.before), _figures(tally.after), strict=True)
    ]
    note = (
        f"Correlation of saved and recomputed advantages over tokens: {tally.correlation:.4f}."
        if tally.correlation is not None
        else ""
    )
    yield Table(f"advantages of {tally.num_groups:,} groups", ("", "saved", "recomputed"), rows, note)
    if tally.largest:
        columns = ("step", "uid", "rollout", "score", "new score", "advantage", "new advantage")
        yield Table(
            "largest changes", columns, [_row(credit) for credit in tally.largest], "Means over trained tokens."
        )


def _figures(side: Side) -> list[tuple[str, Cell]]:
    return [
        ("rollouts trained", side.num_rollouts),
        ("tokens trained", side.num_tokens),
        ("mean |advantage| of a token", side.mean_size),
        ("groups without a signal", side.num_without_signal),
    ]


def _row(credit: Credit) -> list[Cell]:
    step, uid, number = credit.key
    return [step, uid, number, credit.score_before, credit.score_after, *credit.means]


def _values(tally: Tally) -> dict[str, JsonValue]:
    return {
        "identical": tally.identical,
        "num_groups": tally.num_groups,
        "num_groups_fell_silent": tally.num_lost_signal,
        "num_groups_woke": tally.num_gained_signal,
        "num_rollouts": tally.num_rollouts,
        "num_rollouts_changed_sign": tally.num_sign_changed_rollouts,
        "num_tokens": tally.num_tokens,
        "num_tokens_changed_sign": tally.num_sign_changed_tokens,
        "correlation": plain(tally.correlation),
        "saved": {label: plain(value) for label, value in _figures(tally.before)},
        "recomputed": {label: plain(value) for label, value in _figures(tally.after)},
        "largest": [plain(_row(credit)) for credit in tally.largest],
    }
