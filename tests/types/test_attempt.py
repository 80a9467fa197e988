from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def prompt(*ids: int) -> Segment:
    return Segment(Author.PROMPT, ids)


def model(*ids: int, version: int = 0) -> Segment:
    return Segment(Author.MODEL, ids, [-float(i) for i in ids], [VersionSpan(version, len(ids))])


def test_staleness_is_measured_from_the_oldest_version_of_the_group() -> None:
    group = Group(
        Task(messages=[], uid="u"),
        [Rollout([Trajectory([prompt(1), model(2, version=v)])], Stop.FINISHED) for v in (5, 3)],
    )
    assert group.staleness(7) == 4
    assert Group(Task(messages=[]), []).staleness(7) == 0


def test_a_rollout_without_sampled_tokens_or_with_an_infra_failure_does_not_count() -> None:
    assert not Rollout([Trajectory([prompt(1)])], Stop.ERROR).valid
    assert not Rollout([Trajectory([prompt(1), model(2)])], Stop.ERROR, infra_failed=True).valid
    assert Rollout([Trajectory([prompt(1), model(2)])], Stop.DEADLINE).valid
    # it has no score, and 0 would be a real score
    assert not Rollout([Trajectory([prompt(1), model(2)])], Stop.ERROR).valid
    assert Rollout([], Stop.ERROR).reward == 0.0
