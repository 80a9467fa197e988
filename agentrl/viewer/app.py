"""HTTP routes of the viewer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from agentrl.errors import AgentRLError, DataError
from agentrl.store.text import original
from agentrl.viewer.access import Guard
from agentrl.viewer.curves import overview
from agentrl.viewer.excerpts import excerpts
from agentrl.viewer.filters import Filter, read_filter
from agentrl.viewer.index import Snapshot
from agentrl.viewer.json_response import json_response, shown_choices, shown_rows
from agentrl.viewer.rollout_page import shown_rollout
from agentrl.viewer.runs import ViewedRun

STATIC = Path(__file__).parent / "static"
MAX_ROWS = 1000
"""Maximum number of rows per response."""

FIRST_FILE_S = 1.0
"""Maximum time that a request waits until the run's files are listed for the first time."""

_OWN = ("run", "offset", "limit", "q", "at_split", "at_step", "at_uid", "at_number")
"""Query parameters that are not filters."""

N = TypeVar("N")


def make_app(runs: Sequence[ViewedRun], token: str) -> Starlette:
    """Create the web app for `runs`, protected by `token`. The first run is shown first."""

    def of_run(answer: Callable[[ViewedRun, Request], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            try:
                return json_response(answer(_chosen(runs, request), request))
            except (AgentRLError, OSError) as error:  # OSError: a file deleted during the request
                return json_response({"error": str(error)}, 400)

        return endpoint

    return Starlette(
        routes=[
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Route("/api/state", lambda request: _state(runs, request)),
            Route("/api/curves", of_run(lambda run, request: run.curves.read())),
            Route("/api/overview", lambda request: json_response(overview())),
            Route("/api/rows", of_run(_rows)),
            Route("/api/excerpts", of_run(_excerpts)),
            Route("/api/neighbours", of_run(_neighbours)),
            Route("/api/rollout", of_run(_rollout)),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, token=token)],
    )


def _state(runs: Sequence[ViewedRun], request: Request) -> Response:
    """State of all runs, with version numbers that change with the content; HTTP status 304 if nothing changed."""
    state = [_state_of(run) for run in runs]
    etag = f'"{hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"etag": etag})
    response = json_response({"runs": state})
    response.headers["etag"] = etag
    return response


def _state_of(run: ViewedRun) -> dict[str, object]:
    snapshot = run.index.snapshot()
    return {
        "name": run.name,
        "curves": run.curves.version,
        "has_curves": run.curves.exist,
        "rows": snapshot.version,
        "num_rollouts": snapshot.table.num_rows - snapshot.num_dropped,
        "problems": snapshot.problems,
        "num_read": len(snapshot.parts),
        "num_files": snapshot.num_files,
    }


def _rows(run: ViewedRun, request: Request) -> dict[str, object]:
    snapshot = _snapshot(run)
    found, searched = _found(run, snapshot, request)
    hidden = 0 if _filter(request).dropped else snapshot.num_dropped
    return {
        "version": snapshot.version,
        "total": snapshot.table.num_rows - hidden,
        "num_hidden": hidden,
        "matched": len(found),
        "num_parts": len(snapshot.parts),
        "num_searched": searched,
        "choices": shown_choices(snapshot),
        "rows": shown_rows(snapshot.table, _asked(found, request)),
    }


def _excerpts(run: ViewedRun, request: Request) -> dict[str, object]:
    """Prompts and answers of the rows that `_rows` returns; a separate request, because reading them is slower."""
    snapshot = _snapshot(run)
    found, _ = _found(run, snapshot, request)
    return {"rows": excerpts(snapshot, _asked(found, request))}


def _neighbours(run: ViewedRun, request: Request) -> dict[str, object]:
    """The previous and the next rollout in the requested order; null at either end of the list."""
    snapshot = _snapshot(run)
    found, _ = _found(run, snapshot, request)
    query = _words(request)
    here = read_filter({name: query.get(f"at_{name}", "") for name in ("split", "step", "uid", "number")})
    places = here.rows(snapshot.table)
    position = found.index(places[0]).as_py() if len(places) else -1
    if position < 0:
        return {"position": None, "matched": len(found), "before": None, "after": None}
    before, after = (shown_rows(snapshot.table, found.slice(at, 1)) for at in (max(position - 1, 0), position + 1))
    return {
        "position": position,
        "matched": len(found),
        "before": before[0] if position else None,
        "after": after[0] if after else None,
    }


def _rollout(run: ViewedRun, request: Request) -> Mapping[str, object]:
    query = _words(request)
    place = (query.get("split", ""), _number(request, "step", -1), query.get("uid", ""))
    stored, tokens = run.rollout(*place, _number(request, "number", -1))
    return {**shown_rollout(stored, tokens), "split": place[0]}


def _snapshot(run: ViewedRun) -> Snapshot:
    run.index.start()  # with many runs, the first request for a run starts its index
    run.index.wait(FIRST_FILE_S)
    return run.index.snapshot()


def _asked(found: pa.Array, request: Request) -> pa.Array:
    offset, limit = _number(request, "offset", 0), min(_number(request, "limit", 100), MAX_ROWS)
    return found.slice(offset, limit)


def _found(run: ViewedRun, snapshot: Snapshot, request: Request) -> tuple[pa.Array, int]:
    """Return the positions of matching rows, and the number of searched parts of the index.

    If the request has no text to search for, the second value is the number of all parts.
    """
    mask, searched = None, len(snapshot.parts)
    if text := _words(request).get("q"):
        mask, searched = run.search(text).mask(snapshot.parts)
    return _filter(request).rows(snapshot.table, mask), searched


def _filter(request: Request) -> Filter:
    return read_filter({name: value for name, value in _words(request).items() if name not in _OWN})


def _chosen(runs: Sequence[ViewedRun], request: Request) -> ViewedRun:
    number = _number(request, "run", 0)
    if number >= len(runs):
        raise DataError(f"no run has the number {number}")
    return runs[number]


def _words(request: Request) -> dict[str, str]:
    """Return the query parameters of the URL. The page has escaped lone surrogates (see `store.text`); restore them."""
    return {name: original(value) for name, value in request.query_params.items()}


def _number(request: Request, name: str, default: int) -> int:
    text = _words(request).get(name) or str(default)
    if not text.removeprefix("-").isdecimal() or len(text) > 18:
        raise DataError(f"'{name}' must be a whole number, not '{text}'")
    return max(int(text), min(default, 0))
