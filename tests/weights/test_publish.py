"""Publishing: once per version, under a pause that always ends, with metrics."""

from __future__ import annotations

import asyncio

import pytest
import torch

from agentrl.weights.publish import Publisher


class Recorder:
    """Both sides of a publication: provides weights, and records the requests."""

    def __init__(self, fails: bool = False):
        self.asked = []
        self._fails = fails

    def weights(self):
        return iter([("a", torch.zeros(3)), ("b", torch.zeros(2, 2))])

    async def load_weights(self, weights, version):
        self.asked.append(([name for name, _ in weights], version))
        if self._fails:
            raise ValueError("no")

    async def pause(self, mode):
        self.asked.append(mode)

    async def resume(self):
        self.asked.append("resume")


def test_each_version_is_published_once():
    side = Recorder()
    publisher = Publisher(side, side)

    async def publish():
        for version in (0, 0, 1, 1):
            await publisher.publish(version)

    asyncio.run(publish())
    assert side.asked == [(["a", "b"], 0), (["a", "b"], 1)]


@pytest.mark.parametrize("mode", ["drain", "retract", "in_place"])
def test_engine_is_paused_during_the_update(mode):
    side = Recorder()
    asyncio.run(Publisher(side, side, mode=mode).publish(2))
    assert side.asked == [mode, (["a", "b"], 2), "resume"]


def test_after_a_failed_publish_the_engine_resumes_and_the_version_is_unchanged():
    side = Recorder(fails=True)
    publisher = Publisher(side, side, mode="retract")
    with pytest.raises(ValueError, match="no"):
        asyncio.run(publisher.publish(2))
    assert side.asked[-1] == "resume"
    assert publisher.version is None


def test_engine_may_use_other_weight_names():
    side = Recorder()
    asyncio.run(Publisher(side, side, weights=lambda: iter([("c", torch.ones(1))])).publish(1))
    assert side.asked == [(["c"], 1)]


def test_timings_are_reported_once():
    side = Recorder()
    publisher = Publisher(side, side, mode="retract")
    asyncio.run(publisher.publish(1))
    metrics = publisher.metrics()
    assert metrics.keys() == {"publish/pause_s", "publish/transfer_s", "publish/num_bytes"}
    assert metrics["publish/num_bytes"] == 7 * 4
    assert 0 <= metrics["publish/pause_s"] < 1
    assert publisher.metrics() == {}
