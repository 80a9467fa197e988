"""verl's search tool (`verl.tools.search_tool.SearchTool`), with verl's keys, requests and text for the model."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue, PositiveFloat, PositiveInt

from agentrl.concurrency import Offload
from agentrl.config.base import Section
from agentrl.tools.base import BaseTool, ToolResponse
from agentrl.tools.binding import BindsItself, BoundTool
from agentrl.tools.class_tool import BoundClass
from agentrl.tools.search.bound import BoundServiceSearch
from agentrl.tools.search.passages import queries_of, search_schema, shown
from agentrl.tools.search.service import RetrievalService
from agentrl.types.messages import ToolSchema
from agentrl.utils.yaml_list import check_keys, entry_errors


class _Config(Section):
    """verl's keys. As in verl, `num_workers` and `rate_limit` are limits on concurrent requests."""

    retrieval_service_url: str
    topk: PositiveInt = 3
    num_workers: PositiveInt = 120
    rate_limit: PositiveInt = 120
    enable_global_rate_limit: bool = True
    timeout: PositiveFloat | None = None
    default_timeout: PositiveFloat = 30.0
    type: Literal["native"] = "native"

    @property
    def max_concurrent(self) -> int:
        return min(self.num_workers, self.rate_limit) if self.enable_global_rate_limit else self.num_workers


class SearchTool(BaseTool, BindsItself):
    """Searches with a retrieval service. A subclass may override `execute`.

    Raises:
        ConfigError: `config` has an unknown or wrong key.
    """

    tool_schema = search_schema()
    name = "search"

    def __init__(self, config: dict[str, JsonValue], tool_schema: ToolSchema | None = None) -> None:
        super().__init__(config, tool_schema)
        with entry_errors("config"):
            check_keys(config, _Config.model_fields)
            self._given = _Config.model_validate(config)
            self._service()

    @property
    def _timeout_s(self) -> float:
        return self._given.timeout or self._given.default_timeout

    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox. Closing the toolbox closes the connections to the service."""
        if type(self).execute is not SearchTool.execute:
            return BoundClass(self, deadline_s, offload)
        service, top_k = self._service(), self._given.topk
        return BoundServiceSearch(service, self.tool_schema, self._timeout_s, offload, top_k=top_k, max_chars=None)

    async def execute(
        self, instance_id: str, parameters: dict[str, JsonValue], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, JsonValue]]:
        """Search once. The connections to the service are opened and closed in this call."""
        queries, service = queries_of(parameters), self._service()
        try:
            found = await service.find(queries, self._given.topk, self._timeout_s)
        finally:
            await service.close()
        return ToolResponse(shown(found)), 0.0, {"query_count": len(found), "total_results": sum(map(len, found))}

    def _service(self) -> RetrievalService:
        return RetrievalService(self._given.retrieval_service_url, self._given.max_concurrent)
