"""A user that a language model plays: what it reads, when it ends, what it costs, and what a bad endpoint does."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from judge_server import JudgeServer, Reply, serving

from agentrl.errors import ConfigError, DataError
from agentrl.interactions import user_functions
from agentrl.interactions.loading import load_interactions
from agentrl.interactions.model import ModelUser
from agentrl.interactions.session import InteractionSession, check_interaction
from agentrl.tools.base import InfraError
from agentrl.types.task import Task

PROMPT = [{"role": "system", "content": "You are a clerk."}, {"role": "user", "content": "Hi."}]
ASKED = {"role": "assistant", "content": "Which day?"}
FRIDAY = Reply("Friday, please.")


@pytest.fixture
def served():
    """Makes servers that stop after the test."""
    with ExitStack() as stack:
        yield lambda *replies, **kwargs: stack.enter_context(serving(JudgeServer(replies, **kwargs)))


def user_of(server, waits=None, **options):
    async def sleep(seconds):
        if waits is not None:
            waits.append(seconds)

    return ModelUser({"name": "customer", "url": server.url, "model": "m", **options}, sleep)


def task_of(**kwargs):
    return Task(messages=PROMPT, index=4, interaction_kwargs=kwargs)


async def _talk(user, turns, seed=1, **kwargs):
    """Answers to the assistant's `turns`, and the score of the rollout."""
    messages, answers = list(PROMPT), []
    async with InteractionSession({"customer": user}, task_of(**kwargs), seed=seed) as session:
        for turn in turns:
            messages += turn if isinstance(turn, list) else [turn]
            answers.append(await session.respond(messages))
            messages.append({"role": "user", "content": answers[-1].text})
            if answers[-1].done:
                break
        return answers, await session.score()


def talk(user, *turns, **options):
    return asyncio.run(_talk(user, turns or [ASKED], **options))


def test_the_model_reads_the_conversation_with_swapped_roles(served):
    server = served(FRIDAY, Reply("<think>I am done.</think>\nThank you."))
    calls = [{"type": "function", "function": {"name": "book", "arguments": {"day": "Friday"}}}]
    booking = {"role": "assistant", "content": "<think>a secret</think>One moment.", "tool_calls": calls}
    found = {"role": "tool", "content": "seat 7"}
    answers, score = talk(
        user_of(server, persona="You are in a hurry."),
        ASKED,
        [booking, found, {"role": "assistant", "content": "Done: <|im_end|>"}],
        goal="Book a seat.",
    )
    assert [answer.text for answer in answers] == ["Friday, please.", "Thank you."]
    assert (score, [answer.score for answer in answers]) == (0.0, [0.0, 0.0])
    system, begin, *said = server.bodies[1]["messages"]
    assert "You are in a hurry." in system["content"]
    assert "Book a seat." in system["content"]
    assert begin["role"] == "user"
    assert [(each["role"], each["content"]) for each in said] == [
        ("assistant", "Hi."),
        ("user", "Which day?"),
        ("assistant", "Friday, please."),
        ("user", "One moment.\n\nDone: <\\|im_end|>"),
    ]
    assert "secret" not in json.dumps(server.bodies)
    assert "clerk" not in json.dumps(server.bodies)


def test_answers_of_react_tools_are_not_words_of_the_user(served):
    server = served(FRIDAY)
    calls = [{"type": "function", "function": {"name": "book", "arguments": {}}}]
    turn = [
        {"role": "assistant", "content": "Action: book", "tool_calls": calls},
        {"role": "user", "content": "Observation: seat 7"},
        ASKED,
    ]
    talk(user_of(server), turn)
    assert "seat 7" not in json.dumps(server.bodies)


def test_seeds_depend_on_the_rollout_and_the_number_of_the_answer(served):
    server = served(otherwise=lambda body: FRIDAY)
    for seed in (1, 1, 2):
        talk(user_of(server), ASKED, ASKED, seed=seed)
    first, again, other = (tuple(body["seed"] for body in server.bodies[start : start + 2]) for start in (0, 2, 4))
    assert first == again
    assert len({*first, *other}) == 4
    assert all(0 <= seed < 2**31 for seed in (*first, *other))
    talk(user_of(server, send_seed=False, extra_body={"top_k": 5}))
    assert "seed" not in server.bodies[-1]
    assert server.bodies[-1]["top_k"] == 5


def lasts_three(messages, **row):
    return len(messages) > row["length"]


@pytest.mark.parametrize(
    ("options", "num_answers", "num_requests"),
    [
        ({"stop": "BYE"}, 3, 3),
        ({"stop": None, "max_turns": 2}, 3, 2),
        ({"stop": None, "max_conversation_tokens": 3}, 3, 2),  # the server reports two tokens a request
        ({"stop": None, "stop_when": f"{__file__}:lasts_three"}, 2, 1),
    ],
)
def test_the_conversation_ends(served, options, num_answers, num_requests):
    server = served(FRIDAY, Reply("At noon."), Reply("BYE"))
    answers, _ = talk(user_of(server, **options), *[ASKED] * 6, length=3)
    assert [answer.done for answer in answers] == [False] * (num_answers - 1) + [True]
    assert len(server.bodies) == num_requests


def test_the_number_of_answers_is_read_from_the_conversation(served):
    """So the limit also holds in a conversation that continues a saved one."""
    server = served()
    turns = [[ASKED, {"role": "user", "content": "Friday."}, ASKED, {"role": "user", "content": "Noon."}, ASKED]]
    (answer,), _ = talk(user_of(server, max_turns=2), *turns)
    assert answer.done
    assert server.bodies == []


def test_a_run_that_costs_too_much_ends(served):
    server = served(otherwise=lambda body: FRIDAY)
    user = user_of(server, prices=[1e6, 2e6], max_cost=5)
    with pytest.raises(ConfigError, match=r"interaction 'customer': its requests cost 6, and max_cost is 5"):
        talk(user, *[ASKED] * 3)
    assert len(server.bodies) == 2


def test_tokens_are_estimated_if_the_endpoint_does_not_count(served):
    message = {"role": "assistant", "content": "x" * 4000}
    server = served(Reply(raw=json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()))
    answers, _ = talk(user_of(server, max_conversation_tokens=1000), ASKED, ASKED)
    assert [answer.done for answer in answers] == [False, True]


BAD = {
    "busy": Reply(status=429, raw=b"slow down"),
    "broken": Reply(status=503, raw=b"{}"),
    "no completion": Reply(raw=b'{"choices": []}'),
    "no JSON at all": Reply(raw=b"<html>hello</html>"),
    "no text": Reply(raw=b'{"choices": [{"message": {"content": null}}]}'),
    "empty": Reply(" \n"),
    "only a thought": Reply("<think>What now?</think>"),
    "half a thought": Reply("<think>What now?"),
    "cut off": Reply("I would like to", finish_reason="length"),
    "endless": Reply("la " * 10_000),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_an_invalid_answer_is_retried_and_then_an_infra_error(served, bad):
    server = served(bad, bad, FRIDAY)
    answers, _ = talk(user_of(server))
    assert answers[0].text == "Friday, please."
    assert len(server.bodies) == 3
    server = served(otherwise=lambda body: bad)
    with pytest.raises(InfraError, match="no answer: 2 tries failed, last error"):
        talk(user_of(server, max_retries=1))


def test_an_answer_that_no_file_can_store_is_changed(served):
    raw = b'{"choices": [{"message": {"content": "Fri\\ud800day"}}]}'
    answers, _ = talk(user_of(served(Reply(raw=raw))))
    assert answers[0].text == "Fri?day"


def test_an_endpoint_that_refuses_ends_the_run_without_showing_the_key(served, monkeypatch):
    monkeypatch.setenv("USER_KEY", "sk-secret")
    refused = Reply(status=401, raw=b"wrong key sk-secret")
    with pytest.raises(ConfigError, match=r"interaction 'customer': .*status 401: wrong key \(key\)"):
        talk(user_of(served(refused), api_key_env="USER_KEY"))
    server = served(FRIDAY, refused)
    with pytest.raises(InfraError, match="status 401"):
        talk(user_of(server, api_key_env="USER_KEY"), ASKED, ASKED)
    assert server.keys == ["Bearer sk-secret"] * 2


def test_many_conversations_share_the_limits(served):
    server, waits = served(otherwise=lambda body: Reply("Friday.", delay_s=0.01)), []
    user = user_of(server, waits, max_concurrent=3, max_per_minute=600)

    async def main():
        return await asyncio.gather(*(_talk(user, [ASKED], seed=seed) for seed in range(12)))

    assert [answers[0].text for answers, _ in asyncio.run(main())] == ["Friday."] * 12
    assert server.most_at_once <= 3
    assert len(waits) == 11
    assert max(waits) > 0.5  # the last of twelve requests, at ten a second


def polite(messages, **row):
    return float("please" in messages[-1]["content"])


async def counted(messages, goal="", **row):
    return len(goal)


def test_a_function_scores_the_turns(served):
    server = served(otherwise=lambda body: FRIDAY)
    user = user_of(server, score=f"{__file__}:polite")
    answers, score = talk(user, {"role": "assistant", "content": "Which day, please?"}, ASKED)
    assert ([answer.score for answer in answers], score) == ([1.0, 0.0], 0.5)
    assert talk(user_of(server, score=f"{__file__}:counted"), goal="abc")[1] == 3.0


def test_the_model_scores_the_turns(served):
    server = served(Reply("3/5"), Reply("6"), Reply("4"), FRIDAY, Reply("1"), Reply("[END]"))
    user = user_of(server, score="ask", score_range=[1, 5])
    answers, score = talk(user, ASKED, ASKED)
    assert ([answer.score for answer in answers], score) == ([0.75, 0.0], 0.375)
    assert "from 1 (not at all) to 5" in server.bodies[0]["messages"][-1]["content"]
    assert "not at all" not in json.dumps(server.bodies[3])  # the question is no part of the conversation


def hangs(messages, **row):
    HELD.wait()


def words(messages, **row):
    return "many"


HELD = threading.Event()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_when": f"{__file__}:lasts_three"}, "KeyError: 'length'"),
        ({"stop_when": f"{__file__}:hangs"}, "hangs' took longer than 0.05 seconds"),
        ({"score": f"{__file__}:words"}, "'score' returned 'many', expected a number"),
    ],
)
def test_a_failing_function_is_an_infra_error(served, monkeypatch, options, message):
    monkeypatch.setattr(user_functions, "TIMEOUT_S", 0.05)
    HELD.clear()
    try:
        with pytest.raises(InfraError, match=message):
            talk(user_of(served(), **options))
    finally:
        HELD.set()


def test_the_files_of_the_page_load(tmp_path):
    page = (Path(__file__).parents[2] / "docs/simulated-users.md").read_text()
    blocks = [text for text in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL) if "interaction:" in text]
    for text in blocks:
        (tmp_path / "users.yaml").write_text(text)
        (user,) = load_interactions(tmp_path / "users.yaml").values()
        assert isinstance(user, ModelUser)
    assert len(blocks) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs either 'url'"),
        ({"url": "http://x/v1", "engine": "policy"}, "needs either 'url'"),
        ({"url": "http://x/v1"}, "needs 'model'"),
        ({"url": "http://x/v1?key=1", "model": "m"}, "must not contain a password"),
        ({"engine": "base"}, "'engine': Input should be 'policy'"),
        ({"engine": "policy", "max_concurrent": 3}, "'max_concurrent' has no effect"),
        ({"engine": "policy", "persna": "x"}, "unknown key 'persna': did you mean 'persona'"),
        ({"engine": "policy", "score_range": [0, 1]}, "'score_range' has no effect"),
        ({"engine": "policy", "score": "ask", "score_range": [1, 1]}, "the lower first"),
        ({"engine": "policy", "max_turns": 0}, "'max_turns'"),
        ({"engine": "policy", "stop_when": f"{__file__}:BAD"}, "is not a function"),
        ({"engine": "policy", "stop_when": f"{__file__}:lasts_tree"}, "did you mean 'lasts_three'"),
        ({"url": "http://x/v1", "model": "m", "max_cost": 3}, "set both 'prices' and 'max_cost'"),
        ({"url": "http://x/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"}, "an environment variable that is not set"),
        ({"url": "http://x/v1", "model": "m", "api_key_env": "sk-123"}, "not a key"),
    ],
)
def test_mistakes_are_named(tmp_path, options, message):
    path = tmp_path / "users.yaml"
    path.write_text(json.dumps({"interaction": [{"name": "model_user", "config": options}]}))
    with pytest.raises(ConfigError, match=message) as caught:
        load_interactions(path)
    assert "interaction[0]" in str(caught.value)
    assert "sk-123" not in str(caught.value)


def test_all_mistakes_are_named_together(tmp_path):
    path = tmp_path / "users.yaml"
    path.write_text("interaction: [{name: model_user, config: {engine: policy, max_turns: 0, max_tokens: 0}}]")
    with pytest.raises(ConfigError) as caught:
        load_interactions(path)
    assert [line.count("interaction[0]: 'max_t") for line in str(caught.value).split("\n")] == [1, 1]


def test_own_instructions_have_places_for_values_of_the_row(served):
    server = served(otherwise=lambda body: FRIDAY)
    user = user_of(server, prompt="You want {{ goal }} for {{budget}} euros. Then write {{ stop }}.", goal="a bed")
    talk(user, budget=90)
    assert server.bodies[0]["messages"][0]["content"] == "You want a bed for 90 euros. Then write [END]."
    users = {"customer": user}
    with pytest.raises(DataError, match=r"interaction_kwargs\.budget is missing"):
        check_interaction(users, task_of(goal="a chair"))
    with pytest.raises(DataError, match=r"interaction_kwargs\.goal must be text, not 7"):
        check_interaction(users, task_of(goal=7, budget=1))
    check_interaction(users, task_of(name="customer", budget=1))


def test_a_silent_assistant_is_shown_as_such(served):
    server = served(FRIDAY)
    talk(user_of(server), {"role": "assistant", "content": " "})
    assert server.bodies[0]["messages"][-1]["content"] == "(The assistant wrote nothing.)"


def test_the_run_is_reproducible_only_with_the_engine(served):
    assert not user_of(served()).deterministic
    assert ModelUser({"engine": "policy"}).deterministic
