"""Choice of the replica for a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentrl.engines.sglang.replica import Health, Replica


class Placement:
    """Assigns conversations to replicas.

    An open conversation keeps its replica and its KV. A new conversation gets the least loaded replica.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._places: dict[str, Replica] = {}
        self._num_placed: Counter[Replica] = Counter()
        self._num_kept_at_start: dict[str, int] = {}
        self._num_kept = 0

    def choose(self, session: str) -> Replica | None:
        """Choose a replica in service; None if there is none.

        A session keeps its replica while the replica is ready.
        """
        place = self._places.get(session)
        if place is not None and place.health is Health.READY:
            return place
        ready = [replica for replica in self._replicas if replica.health is Health.READY]
        chosen = min(ready, key=self._load, default=None)
        if chosen is not None and session:
            self._place(session, chosen)
        return chosen

    def cache_key(self, session: str) -> str | None:
        """Key of the session for the KV cache: sessions reuse KV only from sessions with the same key.

        After a weight update that kept the cache, an open conversation continues with its KV of older weights. A later
        conversation with the same prefix must not reuse that KV, so it gets another key. The key is None before the
        first such update.
        """
        num_kept = self._num_kept_at_start.setdefault(session, self._num_kept) if session else self._num_kept
        return str(num_kept) if num_kept else None

    def cache_kept(self) -> None:
        """Record a weight update after which the servers keep KV of older weights."""
        self._num_kept += 1

    def forget(self, session: str) -> None:
        """Forget a finished conversation."""
        self._num_kept_at_start.pop(session, None)
        self._leave(session)

    def _leave(self, session: str) -> None:
        if (place := self._places.pop(session, None)) is not None:
            self._num_placed[place] -= 1

    @property
    def num_sessions(self) -> int:
        """Number of conversations with a replica."""
        return len(self._places)

    def _place(self, session: str, replica: Replica) -> None:
        self._leave(session)
        self._places[session] = replica
        self._num_placed[replica] += 1

    def _load(self, replica: Replica) -> tuple[int, int]:
        """Sort key: running requests, then conversations, because open conversations send more requests later."""
        return replica.num_running, self._num_placed[replica]
