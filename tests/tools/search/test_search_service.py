from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from retrieval_server import retrieval_server
from tool_builders import call, run_calls, task

from agentrl.errors import ConfigError
from agentrl.registry import Registry
from agentrl.tools import loading
from agentrl.tools.base import ToolResponse
from agentrl.tools.loading import tools_of
from agentrl.tools.search.passages import search_schema
from agentrl.tools.search.service import NUM_TRIES, Pace, RetrievalService
from agentrl.tools.search.verl_tool import SearchTool
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome
from agentrl.utils import retries

CONFIGS = Path(__file__).parents[3] / "configs/tool_config"
DEEP = b'{"result": ' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)


def loaded(tmp_path, text):
    (tmp_path / "tools.yaml").write_text(text)
    return [*tools_of(tmp_path / "tools.yaml")]


def of_verl(url, **config):
    return SearchTool({"retrieval_service_url": url, "type": "native", **config})


def search(*tools, queries=("who?",), name="search", **options):
    """The result of one call."""
    ((result,), _) = run_calls(tools, call(name, query_list=[*queries]), **options)
    return result


def test_verls_yaml_file_sends_verls_request_and_shows_verls_text(tmp_path):
    with retrieval_server() as (url, behaviour):
        text = (CONFIGS / "search_service.yaml").read_text()
        tools = loaded(tmp_path, text.replace("http://127.0.0.1:8000/retrieve", url))
        result = search(*tools, queries=["who?", "where?"])
    assert behaviour.requests == [{"queries": ["who?", "where?"], "topk": 3, "return_scores": True}]
    listed = (
        "Doc 1 (Title: Karito)\nThe mayor is Belona.\n\n"
        'Doc 2 (Title: "Owl")\nOwls fly at night.\nThey see well.\n\n'
        "Doc 3 (Title: Alone)"
    )
    assert json.loads(result.text) == {"result": f"{listed}\n---\n{listed}"}
    assert result.text.startswith('{"result": "Doc 1 (Title: Karito)\\nThe mayor is Belona.\\n\\nDoc 2')
    assert (result.outcome, result.metrics) == (Outcome.OK, {"query_count": 2, "total_results": 6})


def test_the_short_form_is_the_same_tool(tmp_path):
    with retrieval_server() as (url, behaviour):
        tools = loaded(tmp_path, f"tools:\n  - name: search\n    service: {url}\n    top_k: 2\n    max_chars: 7\n")
        text = search(*tools).text
    assert behaviour.requests[0]["topk"] == 2
    assert json.loads(text)["result"] == 'Doc 1 (Title: Karito)\nThe may\n\nDoc 2 (Title: "Owl")\nOwls fl'


def test_a_service_that_finds_nothing():
    for answer in (b'{"result": []}', b'{"result": [[]]}'):
        with retrieval_server(answer) as (url, _):
            result = search(of_verl(url))
        assert (result.outcome, json.loads(result.text)) == (Outcome.OK, {"result": "No search results found."})


@pytest.mark.parametrize("faults", [(503,), (429, 500), (b"<html>",), (b'{"result": 5}', 502)])
def test_a_failure_is_repeated(faults):
    with retrieval_server(*faults) as (url, behaviour):
        result = search(of_verl(url))
    assert result.outcome is Outcome.OK
    assert behaviour.requests == [behaviour.requests[0]] * (len(faults) + 1)


@pytest.mark.parametrize(
    "answer",
    [
        500,
        429,
        b"",
        b"no JSON",
        b"[]",
        b'{"results": []}',
        b'{"result": {}}',
        b'{"result": [[], []]}',
        b'{"result": [5]}',
        b'{"result": [[{"contents": "x"}]]}',
        b'{"result": [[{"document": {"contents": null}}]]}',
        b'{"result": [[NaN]]}',
        DEEP,
        b'{"result": "' + b"x" * (9 * 2**20) + b'"}',
    ],
    ids=lambda answer: str(answer[:30]) if isinstance(answer, bytes) else str(answer),
)
def test_a_service_that_keeps_failing_is_an_infra_error(answer):
    with retrieval_server(*[answer] * NUM_TRIES) as (url, behaviour):
        result = search(of_verl(url))
    assert (result.outcome, len(behaviour.requests)) == (Outcome.INFRA_ERROR, NUM_TRIES)
    assert url in result.text
    assert len(result.text) < 1000


def test_a_service_that_refuses_the_request_is_not_asked_again():
    with retrieval_server(404) as (url, behaviour):
        result = search(of_verl(url))
    assert (result.outcome, len(behaviour.requests)) == (Outcome.INFRA_ERROR, 1)
    assert "answers 404 {" in result.text


def test_a_service_that_does_not_answer_or_does_not_run_is_an_infra_error():
    with retrieval_server(silent=threading.Event()) as (url, behaviour):
        result = search(of_verl(url, timeout=0.05))
    assert (result.outcome, len(behaviour.requests)) == (Outcome.INFRA_ERROR, NUM_TRIES)
    assert "no answer in 0.05 seconds" in result.text
    assert search(of_verl(url)).outcome is Outcome.INFRA_ERROR  # the port is closed now


def test_a_busy_service_that_asks_for_a_pause_gets_it():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    async def main(url):
        service = RetrievalService(url, 2, sleep=sleep)
        found = await service.find(["q"], 1, 5.0)
        await service.close()
        return found

    with retrieval_server(429, headers={"Retry-After": "40"}) as (url, _):
        assert asyncio.run(main(url)) == [["Karito\nThe mayor is Belona."]]
    assert [round(wait) for wait in waits] == [40]


def test_requests_at_a_time_are_bounded():
    async def main(tool):
        box = Toolbox([tool])

        async def one():
            async with box.session(task()) as session:
                return (await session.call(call("search", query_list=["q"]))).outcome

        outcomes = await asyncio.gather(*(one() for _ in range(6)))
        await box.close()
        return outcomes

    for limits in ({"num_workers": 2}, {"rate_limit": 2}):
        with retrieval_server(together=threading.Barrier(2)) as (url, behaviour):  # each waits for a second one
            assert asyncio.run(main(of_verl(url, **limits))) == [Outcome.OK] * 6
        assert behaviour.most_running == 2


def test_starts_are_spread_over_time():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    async def main():
        pace = Pace(0.01, sleep)
        for _ in range(3):
            await pace.wait()
        await Pace(None, sleep).wait()

    asyncio.run(main())
    assert [round(wait, -1) for wait in waits] == [100, 200]


def test_the_pace_of_an_entry_is_kept(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("agentrl.tools.search.service.Pace.__init__", lambda self, rate, sleep: given.append(rate))
    loaded(tmp_path, "tools:\n  - service: http://x\n    max_per_s: 5\n")
    assert given == [5.0]


@pytest.mark.parametrize(
    ("queries", "text"),
    [
        ([], "'query_list' must be a list of one or more queries"),
        ("who?", "'query_list' must be a list"),
        ([5], "each query must be a text"),
        ([" "], "each query must be a text that is not empty"),
        (["x"] * 33, "33 queries, at most 32"),
        (["x" * 4001], "4001 characters, at most 4000"),
    ],
)
def test_a_bad_query_is_the_models_mistake(queries, text):
    with retrieval_server() as (url, behaviour):
        schema = search_schema()
        schema.function.parameters["properties"]["query_list"] = {}  # verl's file says `item:`, not `items:`
        tool = SearchTool({"retrieval_service_url": url}, schema)
        ((result,), _) = run_calls([tool], call("search", query_list=queries))
    assert (result.outcome, behaviour.requests) == (Outcome.TOOL_ERROR, [])
    assert result.text.startswith("Error: ")
    assert text in result.text


def test_a_query_that_does_not_fit_the_schema_is_a_format_error():
    ((result,), _) = run_calls([of_verl("http://127.0.0.1:1")], call("search", query_list=[5]))
    assert result.outcome is Outcome.FORMAT_ERROR


def test_a_lone_surrogate_is_sent_as_a_question_mark():
    with retrieval_server() as (url, behaviour):
        assert search(of_verl(url), queries=["a\ud800b"]).outcome is Outcome.OK
    assert behaviour.requests[0]["queries"] == ["a?b"]


def test_a_subclass_may_search_twice():
    class Twice(SearchTool):
        async def execute(self, instance_id, parameters, **kwargs):
            first, _, counts = await super().execute(instance_id, parameters)
            second, _, _ = await super().execute(instance_id, parameters)
            return ToolResponse(first.text + second.text), 0.0, counts

    with retrieval_server() as (url, behaviour):
        result = search(Twice({"retrieval_service_url": url, "topk": 1}))
    assert result.text == 2 * '{"result": "Doc 1 (Title: Karito)\\nThe mayor is Belona."}'
    assert (len(behaviour.requests), result.metrics) == (2, {"query_count": 1, "total_results": 1})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "config: 'retrieval_service_url': Field required"),
        ({"sandbox_fusion_url": "http://x"}, "unknown key 'sandbox_fusion_url'"),
        ({"retrieval_service_url": "localhost:8000"}, "must begin with http:// or https://"),
        ({"retrieval_service_url": "http://x:port"}, "cannot be used: Port"),
        ({"retrieval_service_url": "http://x", "num_workers": 0}, "config: 'num_workers'"),
    ],
)
def test_a_wrong_configuration_is_refused(config, text):
    with pytest.raises(ConfigError) as caught:
        SearchTool(config)
    assert text in str(caught.value)


def test_secrets_of_the_address_are_not_shown():
    with retrieval_server(404) as (url, _):
        secret = url.replace("http://", "http://me:pass@") + "?key=hidden"
        text = search(of_verl(secret)).text
    assert url in text
    assert "pass" not in text
    assert "hidden" not in text


def test_a_search_tool_needs_documents_or_a_service(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "FUNCTIONS", Registry("tool"))  # another test may have registered a `search`
    for entry in ("name: search", "{documents: x, service: http://x}"):
        with pytest.raises(ConfigError, match="needs either 'documents'"):
            loaded(tmp_path, f"tools:\n  - {entry}\n")
    with pytest.raises(ConfigError, match="unknown key 'topk': did you mean 'top_k'"):
        loaded(tmp_path, "tools:\n  - {service: http://x, topk: 3}\n")


def test_a_function_of_the_name_search_is_still_found(tmp_path):
    (tmp_path / "own_search.py").write_text(
        "from agentrl.tools import tool\n@tool(name='search')\ndef own(q: str) -> str:\n    'Own.'\n    return q\n"
    )
    (found,) = loaded(tmp_path, "tools:\n  - {name: search, function: own_search.py:own}\n")
    assert found.schema.function.description == "Own."
