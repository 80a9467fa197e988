"""The label of a container, which names the process that owns the container."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from agentrl.sandboxes.owner import has_ended

LABEL = "agentrl.owner"
_OWNED = re.compile(rf"^(\w+)\b.*\b{re.escape(LABEL)}[=:]([\w-]+)")


def orphans(lines: Iterable[str]) -> Iterator[str]:
    """Yield the identifiers of containers whose owner, a process of this machine, has ended.

    Args:
        lines: each line has the identifier and the labels of a container, as `docker ps` prints them.
    """
    for line in lines:
        found = _OWNED.match(line)
        if found and has_ended(found[2]):
            yield found[1]
