"""Which replica a request goes to: pure choices over what is in service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentrl.engines.sglang.replica import Health, Replica


class Placement:
    """Keeps a conversation where its KV is; a new one goes to the least loaded replica in service."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._places: dict[str, Replica] = {}
        self._num_placed: Counter[Replica] = Counter()
        self._born: dict[str, int] = {}
        self._num_kept = 0

    def choose(self, session: str) -> Replica | None:
        """A replica in service, None when there is none. The session stays with it while it is in service."""
        place = self._places.get(session)
        if place is not None and place.health is Health.READY:
            return place
        ready = [replica for replica in self._replicas if replica.health is Health.READY]
        chosen = min(ready, key=self._load, default=None)
        if chosen is not None and session:
            self._place(session, chosen)
        return chosen

    def cache_key(self, session: str) -> str | None:
        """Whose KV the session may share: of sessions that began since the cache was kept over the same updates.

        None before the first of them. A conversation goes on with its own KV of older weights; a new one with the same
        beginning must not start from it.
        """
        born = self._born.setdefault(session, self._num_kept) if session else self._num_kept
        return str(born) if born else None

    def cache_kept(self) -> None:
        """The weights have changed, and the servers still hold KV of the older ones."""
        self._num_kept += 1

    def forget(self, session: str) -> None:
        """The conversation is over."""
        self._born.pop(session, None)
        self._leave(session)

    def _leave(self, session: str) -> None:
        if (place := self._places.pop(session, None)) is not None:
            self._num_placed[place] -= 1

    @property
    def num_sessions(self) -> int:
        """Conversations that have a place."""
        return len(self._places)

    def _place(self, session: str, replica: Replica) -> None:
        self._leave(session)
        self._places[session] = replica
        self._num_placed[replica] += 1

    def _load(self, replica: Replica) -> tuple[int, int]:
        """Requests now, then conversations: those that wait for a tool come back."""
        return replica.num_running, self._num_placed[replica]
