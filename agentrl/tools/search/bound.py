"""Search tools, bound for the toolbox."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.concurrency import Offload
from agentrl.tools.binding import AgentData, BoundTool, ToolInstance
from agentrl.tools.result import Answer
from agentrl.tools.search.passages import Found, queries_of, shown
from agentrl.tools.search.service import RetrievalService
from agentrl.types.messages import ToolSchema

if TYPE_CHECKING:
    from agentrl.tools.search.index import PassageIndex


class BoundSearch(BoundTool, ToolInstance):
    """A bound search tool. It keeps no state, so this object is also the `ToolInstance` of every trajectory.

    Args:
        top_k: number of passages for each query.
        max_chars: maximum characters of a passage's text; None: no limit.
    """

    def __init__(
        self, schema: ToolSchema, deadline_s: float, offload: Offload, *, top_k: int, max_chars: int | None
    ) -> None:
        super().__init__(schema, deadline_s, offload)
        self.top_k, self._max_chars = top_k, max_chars

    def instance(self, data: AgentData) -> ToolInstance:
        """Return the tool itself."""
        return self

    async def call(self, arguments: dict[str, JsonValue]) -> Answer:
        """Search for all queries of the call."""
        found = await self.find(queries_of(arguments))
        counts: dict[str, object] = {"query_count": len(found), "total_results": sum(map(len, found))}
        return Answer(shown(found, self._max_chars), metrics=counts)

    async def find(self, queries: Sequence[str]) -> Found:
        """Return the passages of each query."""
        raise NotImplementedError


class BoundIndexSearch(BoundSearch):
    """A search tool with an index, which is searched on a thread."""

    def __init__(
        self,
        index: PassageIndex,
        schema: ToolSchema,
        deadline_s: float,
        offload: Offload,
        *,
        top_k: int,
        max_chars: int,
    ) -> None:
        super().__init__(schema, deadline_s, offload, top_k=top_k, max_chars=max_chars)
        self.deterministic = True
        self._index = index

    async def find(self, queries: Sequence[str]) -> Found:
        """Search the index."""
        return await self.offload.run_function(partial(self._search, queries), self.deadline_s, self.breaker)

    def _search(self, queries: Sequence[str]) -> Found:
        index = self._index
        return [[index.passage(hit.number) for hit in index.search(query, self.top_k)] for query in queries]


class BoundServiceSearch(BoundSearch):
    """A search tool with a retrieval service. The timeout applies to one request; failed requests are repeated."""

    def __init__(
        self,
        service: RetrievalService,
        schema: ToolSchema,
        deadline_s: float,
        offload: Offload,
        *,
        top_k: int,
        max_chars: int | None,
    ) -> None:
        super().__init__(schema, deadline_s, offload, top_k=top_k, max_chars=max_chars)
        self._service = self.shared = service

    async def find(self, queries: Sequence[str]) -> Found:
        """Ask the service."""
        return await self._service.find(queries, self.top_k, self.deadline_s)
