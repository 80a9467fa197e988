"""How requests are distributed over servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.engines.sglang.replica import Health, Replica
from agentrl.engines.sglang.routing import Placement

ACTIONS = st.tuples(st.sampled_from(["ask", "answer", "over", "lost", "back"]), st.integers(0, 5), st.integers(0, 2))


def replicas(number: int = 3) -> list[Replica]:
    return [Replica(None, None) for _ in range(number)]


def test_session_keeps_its_replica_and_new_ones_go_to_the_least_busy():
    some = replicas()
    placement = Placement(some)
    first = placement.choose("a")
    first.num_running = 5
    assert placement.choose("a") is first
    assert placement.choose("b") is not first
    # counted by conversations when no request is running
    assert len({id(placement.choose(name)) for name in "abc"}) == 3


def test_a_session_moves_when_its_replica_is_lost_and_stays_there():
    some = replicas(2)
    placement = Placement(some)
    first = placement.choose("a")
    first.health = Health.OUT
    second = placement.choose("a")
    assert second is not first
    first.health = Health.READY
    assert placement.choose("a") is second


@pytest.mark.parametrize("health", [Health.OUT, Health.STARTING, Health.SUSPECT])
def test_replicas_out_of_service_get_no_sessions(health):
    some = replicas(1)
    some[0].health = health
    assert Placement(some).choose("a") is None


@given(st.lists(ACTIONS, max_size=40))
def test_placed_sessions_are_on_live_replicas_and_nothing_leaks(actions):
    some = replicas()
    placement, sessions = Placement(some), set()
    for what, session, number in actions:
        if what == "ask":
            chosen = placement.choose(f"{session}")
            ready = [replica for replica in some if replica.health is Health.READY]
            assert (chosen is None and not ready) or chosen in ready
            if chosen is not None:
                sessions.add(session)
                chosen.num_running += 1
        elif what == "answer":
            some[number].num_running = max(0, some[number].num_running - 1)
        elif what == "over":
            placement.forget(f"{session}")
            sessions.discard(session)
        else:
            some[number].health = Health.OUT if what == "lost" else Health.READY
    assert placement.num_sessions == len(sessions)
    for session in [*sessions]:
        placement.forget(f"{session}")
    assert placement.num_sessions == 0
    assert sum(placement._num_placed.values()) == 0


def test_kv_sharing_after_an_update_that_kept_the_cache():
    """Old conversations share KV with each other; new conversations share only among themselves."""
    placement = Placement([])
    assert placement.cache_key("old") is None
    placement.cache_kept()
    assert (placement.cache_key("old"), placement.cache_key("new"), placement.cache_key("")) == (None, "1", "1")
    placement.cache_kept()
    assert (placement.cache_key("new"), placement.cache_key("newer")) == ("1", "2")
    placement.forget("old")
    assert placement.cache_key("old") == "2"
