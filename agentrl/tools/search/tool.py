"""The search tool of the short YAML form: `documents: a folder or file`, or `service: the address of a server`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from agentrl.concurrency import Offload
from agentrl.config.base import Section
from agentrl.errors import ConfigError, install_command
from agentrl.tools.binding import BindsItself, BoundTool
from agentrl.tools.search.bound import BoundIndexSearch, BoundServiceSearch
from agentrl.tools.search.passages import search_schema
from agentrl.tools.search.service import RetrievalService
from agentrl.types.messages import ToolSchema
from agentrl.utils.yaml_list import check_keys

if TYPE_CHECKING:
    from agentrl.tools.search.index import PassageIndex

KEYS = ("documents", "service")
"""Keys that make an entry a search tool; the entry of a search tool must have exactly one of these keys."""


class _Entry(Section):
    name: str = "search"
    description: str | None = None
    top_k: PositiveInt = 3
    max_chars: PositiveInt = 2000
    timeout_s: PositiveFloat | None = None


class DocumentsEntry(_Entry):
    """An entry with documents, for which an index is built."""

    documents: Path
    passage_words: PositiveInt = 200
    k1: Annotated[float, Field(ge=0)] = 1.2
    b: Annotated[float, Field(ge=0, le=1)] = 0.75


class ServiceEntry(_Entry):
    """An entry with a retrieval service."""

    service: str
    max_concurrent: PositiveInt = 120
    max_per_s: PositiveFloat | None = None


def search_tool(entry: Mapping[str, object], folder: Path) -> IndexSearch | ServiceSearch:
    """Return the tool of an entry of a YAML file.

    Args:
        folder: folder of the YAML file. A relative path in `documents` is looked up here, then in the working folder.

    Raises:
        AgentRLError: a key is wrong, the documents cannot be used, or bm25s is not installed.
    """
    given = [key for key in KEYS if key in entry]
    if len(given) != 1:
        raise ConfigError.keyless("a search tool needs either 'documents' (a folder or file) or 'service' (an address)")
    kind = DocumentsEntry if given == ["documents"] else ServiceEntry
    check_keys(entry, kind.model_fields)
    read = kind.model_validate(entry)
    if isinstance(read, ServiceEntry):
        return ServiceSearch(read)
    return IndexSearch(read, _index(read, folder))


@dataclass(frozen=True)
class IndexSearch(BindsItself):
    """A search tool with an index of documents."""

    entry: DocumentsEntry
    index: PassageIndex

    @property
    def schema(self) -> ToolSchema:
        """Schema that the model sees."""
        return search_schema(self.entry.name, self.entry.description)

    @property
    def name(self) -> str:
        """Name that the model calls."""
        return self.entry.name

    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox."""
        limits = {"top_k": self.entry.top_k, "max_chars": self.entry.max_chars}
        return BoundIndexSearch(self.index, self.schema, self.entry.timeout_s or deadline_s, offload, **limits)


class ServiceSearch(BindsItself):
    """A search tool with a retrieval service.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, entry: ServiceEntry) -> None:
        self._entry = entry
        self._service()

    @property
    def name(self) -> str:
        """Name that the model calls."""
        return self._entry.name

    def bound(self, deadline_s: float, offload: Offload) -> BoundTool:
        """Return the tool for the toolbox."""
        entry = self._entry
        schema, timeout_s = search_schema(entry.name, entry.description), entry.timeout_s or deadline_s
        limits = {"top_k": entry.top_k, "max_chars": entry.max_chars}
        return BoundServiceSearch(self._service(), schema, timeout_s, offload, **limits)

    def _service(self) -> RetrievalService:
        return RetrievalService(self._entry.service, self._entry.max_concurrent, self._entry.max_per_s)


def _index(entry: DocumentsEntry, folder: Path) -> PassageIndex:
    if find_spec("bm25s") is None:
        raise ConfigError.keyless(f"'documents' needs bm25s: {install_command('search')}")
    from agentrl.tools.search.index_cache import IndexSettings, load_index  # imports an optional library, and numpy

    given = entry.documents.expanduser()
    documents = folder / given if (folder / given).exists() else given
    return load_index(documents, IndexSettings(entry.passage_words, entry.k1, entry.b))
