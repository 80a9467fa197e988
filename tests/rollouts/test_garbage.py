from __future__ import annotations

import gc

import pytest

from agentrl.rollouts.gc_tuning import MIN_YOUNG, fewer_collections


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


def test_garbage_collection_is_rarer_during_rollouts(thresholds):
    thresholds(700, 9, 8)
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (MIN_YOUNG, 9, 8)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize("given", [(0, 10, 10), (10 * MIN_YOUNG, 10, 10)])
def test_user_value_overrides_the_chosen_default(thresholds, given):
    thresholds(*given)
    with fewer_collections():
        assert gc.get_threshold() == given
