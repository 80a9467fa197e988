"""Import of OpenEnv's `TrainingTrace`: turns with exact tokens, joined into trajectories.

The format is schema_version 1 of openenv 0.10.0 (`openenv.core.harness.TrainingTrace`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pydantic import JsonValue

from agentrl.data.fields import FieldError, optional_object, required, wrong
from agentrl.data.rows.base import Row
from agentrl.errors import suggestion
from agentrl.store.importers.conversation import read_conversation, split_at_answer
from agentrl.store.importers.logged import Logged, an_object, finite, numbers_of, step_of
from agentrl.types.messages import Message
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

TRACES = "openenv"
"""Name of the format on the command line."""
OWN = "agentrl"
"""Key of agentrl's values in the metadata of a turn."""
NOT_IMPORTED = "log-probabilities of tokens that the mask excludes, and other metadata"
"""Data that a rollout cannot hold."""
_TURN = (
    *("node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask"),
    *("request", "response", "metadata"),
)
_MAX_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One sampled turn of a trace: its context (`prompt`) and completion. `mask` has one value per completion token."""

    prompt: Sequence[int]
    completion: Sequence[int]
    logprobs: Sequence[float]
    mask: Sequence[int]
    messages: Sequence[Message]
    tools: JsonValue
    own: Mapping[str, JsonValue]
    temperature: float


def trace_row(value: JsonValue) -> Logged:
    """Read a trace, or an object with the key `trace`.

    The object may also have the optional fields of the log format `messages`, such as `reward`.
    """
    row = an_object(value, '{"schema_version": 1, "turns": [...]}')
    outer = row if "trace" in row else {}
    turns = read_turns(an_object(row.get("trace", value), '{"schema_version": 1, "turns": [...]}'))
    about = optional_object(turns[0].own, "rollout", f"turns[0].metadata.{OWN}.")
    known = {**about, **{key: item for key, item in outer.items() if item is not None}}
    source, uid = known.get("data_source"), known.get("uid")
    prompt = next((split_at_answer(each.messages, "request.messages")[0] for each in turns if each.messages), [])
    tools = turns[0].tools
    return Logged(
        prompt=prompt,
        answer=[],
        rewards=_rewards(known),
        ground_truth=known.get("ground_truth"),
        data_source=source if isinstance(source, str) else None,
        step=step_of(known),
        uid=uid if isinstance(uid, str) else None if prompt else _digest(turns[0].prompt),
        extra_info={"tools": tools} if isinstance(tools, list) and tools else {},
        trajectories=tuple(joined(turns)),
    )


def read_turns(trace: Row) -> list[TracedTurn]:
    """Read the turns of a trace.

    Raises:
        FieldError: the trace does not have the format of schema_version 1.
    """
    _known(trace, ("schema_version", "turns"), "")
    if trace.get("schema_version", 1) != 1:
        raise wrong("schema_version", "1", trace.get("schema_version"))
    listed = required(trace, "turns", "a list of turns")
    if not isinstance(listed, list) or not listed:
        raise wrong("turns", "a list of at least one turn", listed)
    turns = [_turn(turn, f"turns[{number}]") for number, turn in enumerate(listed)]
    ids = [turn["node_id"] for turn in listed if isinstance(turn, dict)]
    if twice := next((each for number, each in enumerate(ids) if each in ids[:number]), None):
        raise FieldError(f"field 'turns': two turns have the node_id '{twice}'")
    return turns


def joined(turns: Sequence[TracedTurn]) -> Iterator[Trajectory]:
    """Join the turns into trajectories.

    A turn continues a trajectory if the context of the turn starts with all tokens of that trajectory. Any other turn
    starts a new trajectory, whose prompt is the context of the turn. So each sampled token is trained on once.
    """
    open_: list[Trajectory] = []
    for turn in turns:
        trajectory = _continued(open_, turn.prompt)
        if trajectory is None:
            trajectory = Trajectory([Segment(Author.PROMPT, turn.prompt)])
            open_.append(trajectory)
        else:
            new = turn.prompt[len(trajectory.token_ids) :]
            trajectory.append(Segment(_author(turn.messages), new))
        for segment in _segments(turn):
            trajectory.append(segment)
        trajectory.messages = list(turn.messages)
    yield from open_


def _continued(trajectories: Sequence[Trajectory], prompt: Sequence[int]) -> Trajectory | None:
    fitting = [each for each in trajectories if prompt[: len(each.token_ids)] == each.token_ids]
    return max(fitting, key=lambda each: len(each.token_ids), default=None)


def _author(messages: Sequence[Message]) -> Author:
    """Return the author of the messages after the previous answer: `tool` if there is a tool message, else `user`."""
    roles = [message["role"] for message in messages[:-1]]
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return Author.TOOL if "tool" in roles[last + 1 :] else Author.USER


def _segments(turn: TracedTurn) -> Iterator[Segment]:
    """Yield the segments of the completion. Tokens that the mask excludes become prompt segments (not trained on)."""
    versions = _versions(turn.own.get("policy_versions"), len(turn.completion))
    start = 0
    for trained, run in groupby(turn.mask):
        end = start + len(list(run))
        ids, logprobs = turn.completion[start:end], turn.logprobs[start:end]
        if trained:
            spans = [VersionSpan(version, len(list(same))) for version, same in groupby(versions[start:end])]
            yield Segment(Author.MODEL, ids, logprobs, spans, turn.temperature)
        else:
            yield Segment(Author.PROMPT, ids)
        start = end


def _versions(value: JsonValue, num_tokens: int) -> list[int]:
    """Return the recorded policy version of each token; 0 if the trace does not contain valid versions."""
    spans = [span for span in value if isinstance(span, list)] if isinstance(value, list) else []
    pairs = [span for span in spans if len(span) == 2 and all(type(each) is int and each >= 0 for each in span)]
    versions = [int(version) for version, length in pairs for _ in range(min(int(length), num_tokens))]  # type: ignore[arg-type]  # integers
    return versions if len(versions) == num_tokens else [0] * num_tokens


def _turn(value: JsonValue, where: str) -> TracedTurn:
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    _known(value, _TURN, f"{where}.")
    if not isinstance(name := value.get("node_id"), str) or not name:
        raise wrong(f"{where}.node_id", "text", name)
    prompt, completion = (_ids(value, key, where) for key in ("prompt_token_ids", "completion_token_ids"))
    if not prompt:
        raise wrong(f"{where}.prompt_token_ids", "at least one token id", prompt)
    mask = _mask(value, where, len(prompt), len(completion))
    messages, tools = _messages(value, where)
    metadata = optional_object(value, "metadata", f"{where}.")
    own = optional_object(metadata, OWN, f"{where}.metadata.")
    sampling = optional_object(metadata, "sampling_params", f"{where}.metadata.")
    temperature = numbers_of({**sampling, **own}).get("temperature", 1.0)
    logprobs = _logprobs(value, where, len(completion))
    return TracedTurn(prompt, completion, logprobs, mask, messages, tools, own, max(temperature, 0.0))


def _ids(turn: Row, key: str, where: str) -> list[int]:
    listed = required(turn, key, "a list of token ids")
    if not isinstance(listed, list) or not all(type(each) is int and 0 <= each <= _MAX_ID for each in listed):
        raise wrong(f"{where}.{key}", "a list of token ids", listed)
    return [int(each) for each in listed if isinstance(each, int)]


def _logprobs(turn: Row, where: str, num_tokens: int) -> list[float]:
    listed = required(turn, "per_token_logps", "a list of numbers")
    given = listed if isinstance(listed, list) else []
    found = [float(each) for each in given if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(found) != num_tokens or len(given) != num_tokens or not all(map(math.isfinite, found)):
        raise wrong(f"{where}.per_token_logps", f"{num_tokens} finite numbers", listed)
    return found


def _mask(turn: Row, where: str, num_prompt: int, num_completion: int) -> list[int]:
    listed = required(turn, "loss_mask", "a list of 0 and 1")
    given = listed if isinstance(listed, list) else []
    if len(given) != num_prompt + num_completion or not all(type(each) is int and each in (0, 1) for each in given):
        raise wrong(f"{where}.loss_mask", f"{num_prompt + num_completion} values of 0 or 1", listed)
    if any(given[:num_prompt]):
        raise FieldError(f"field '{where}.loss_mask': it is 1 in the prompt")
    return [int(each) for each in given[num_prompt:] if isinstance(each, int)]


def _messages(turn: Row, where: str) -> tuple[list[Message], JsonValue]:
    """Return (messages including the answer, tools); ([], None) if the turn has no messages."""
    request, response = (optional_object(turn, key, f"{where}.") for key in ("request", "response"))
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    answer = first.get("message") if isinstance(first, dict) else None
    listed = request.get("messages")
    if not isinstance(listed, list) or not isinstance(answer, dict):
        return [], None
    shown = {"role": "assistant", **answer, "content": answer.get("content") or ""}
    return read_conversation([*listed, shown], f"{where}.request.messages"), request.get("tools")


def _rewards(known: Mapping[str, JsonValue]) -> dict[str, float]:
    named = optional_object(known, "rewards")
    score = {"score": finite(known, "reward")} if known.get("reward") is not None else {}
    return {**{name: finite(named, name) for name in named}, **score}


def _known(row: Row, names: Sequence[str], before: str) -> None:
    for name in row:
        if name not in names:
            raise FieldError(f"unknown field '{before}{name[:60]}': {suggestion(name[:60], names)}")


def _digest(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(repr(list(token_ids)).encode()).hexdigest()[:16]
