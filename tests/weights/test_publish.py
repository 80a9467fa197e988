import asyncio

from agentrl.weights.publish import Publisher


class Recorder:
    """Both sides of a publication: hands weights out, and notes what it was given."""

    def __init__(self):
        self.loaded = []

    def weights(self):
        return iter([("a", 1), ("b", 2)])

    async def load_weights(self, weights, version):
        self.loaded.append((list(weights), version))


def test_each_version_is_published_once():
    side = Recorder()
    publisher = Publisher(side, side)

    async def publish():
        for version in (0, 0, 1, 1):
            await publisher.publish(version)

    asyncio.run(publish())
    assert side.loaded == [([("a", 1), ("b", 2)], 0), ([("a", 1), ("b", 2)], 1)]
