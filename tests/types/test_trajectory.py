import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def prompt(*ids: int) -> Segment:
    return Segment(Author.PROMPT, ids)


def tool(*ids: int) -> Segment:
    return Segment(Author.TOOL, ids)


def model(*ids: int, version: int = 0) -> Segment:
    return Segment(Author.MODEL, ids, [-float(i) for i in ids], [VersionSpan(version, len(ids))])


def test_worked_example_of_the_docstring() -> None:
    trajectory = Trajectory([prompt(1, 2), model(3, 4), tool(5), model(6)])
    assert list(trajectory.token_ids) == [1, 2, 3, 4, 5, 6]
    assert trajectory.loss_mask == [0, 0, 1, 1, 0, 1]
    assert trajectory.logprobs == [0, 0, -3, -4, 0, -6]
    assert trajectory.num_turns == 2
    assert trajectory.num_response_tokens == 4
    assert trajectory.num_trained_tokens == 3


@pytest.mark.parametrize(
    ("segment", "complaint"),
    [
        (lambda: Segment(Author.MODEL, [1]), "logprobs exactly when"),
        (lambda: Segment(Author.TOOL, [1], [0.0]), "logprobs exactly when"),
        (lambda: Segment(Author.MODEL, [1, 2], [0.0], [VersionSpan(0, 2)]), "1 logprobs for 2 tokens"),
        (lambda: Segment(Author.MODEL, [1, 2], [0.0, 0.0], [VersionSpan(0, 1)]), "cover 1 of 2"),
        (lambda: Segment(Author.USER, [1], None, [VersionSpan(0, 1)]), "cover 1 of 1 user"),
    ],
)
def test_numbers_that_do_not_match_the_tokens_are_refused(segment, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        segment()


def test_demonstrations_are_trained_without_policy_version() -> None:
    trajectory = Trajectory([prompt(1), Segment(Author.DEMONSTRATION, [2, 3])])
    assert trajectory.loss_mask == [0, 1, 1]
    assert not trajectory.sampled
    assert Trajectory([prompt(1), model(2)]).sampled


segments = st.lists(
    st.tuples(st.sampled_from(list(Author)), st.lists(st.integers(0, 99), max_size=5)).map(
        lambda drawn: model(*drawn[1]) if drawn[0] is Author.MODEL else Segment(drawn[0], drawn[1])
    )
)


@given(segments)
def test_per_token_fields_have_one_entry_per_token(parts) -> None:
    trajectory = Trajectory(parts)
    length = sum(map(len, parts))
    for values in (trajectory.token_ids, trajectory.loss_mask, trajectory.logprobs, trajectory.temperatures):
        assert len(values) == length
    assert sum(trajectory.loss_mask) == trajectory.num_trained_tokens
    assert [token for part in parts for token in part.token_ids] == list(trajectory.token_ids)


def experts(num_tokens: int, first: int) -> torch.Tensor:
    return torch.full((num_tokens, 2, 2), first, dtype=torch.int32)


def test_routed_experts_grow_turn_by_turn_and_are_never_overwritten() -> None:
    trajectory = Trajectory([prompt(1, 2), model(3, 4)])
    assert trajectory.routed_experts is None
    trajectory.keep_routed_experts(experts(3, 1))
    trajectory.append(tool(5))
    trajectory.append(model(6))
    trajectory.keep_routed_experts(None)  # no experts, as for a turn that was cut short
    trajectory.append(model(7, 8))
    trajectory.keep_routed_experts(experts(7, 255))
    assert trajectory.routed_experts is not None
    assert trajectory.routed_experts[:, 0, 0].tolist() == [1, 1, 1, 255, 255, 255, 255]
    assert trajectory.routed_experts.dtype is torch.uint8
    trajectory.append(model(9))
    trajectory.keep_routed_experts(experts(8, 256))
    assert trajectory.routed_experts[:, 1, 1].tolist() == [1, 1, 1, 255, 255, 255, 255, 256]
    trajectory.keep_routed_experts(experts(4, 9))  # no new tokens
    assert len(trajectory.routed_experts) == 8


def test_routed_experts_of_missing_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="routed experts of 4 tokens, for a trajectory of 4"):
        Trajectory([prompt(1, 2), model(3, 4)]).keep_routed_experts(experts(4, 0))
