from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from source_files import syntax

import agentrl
from agentrl.agent_loops.loading import read_entries
from agentrl.algos import policy_loss
from agentrl.algos.kl_reward import AdaptiveKL
from agentrl.algos.losses.aggregation import aggregation_weights
from agentrl.config.reward import RewardConfig
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError, DataError, Kind, Problem, problems_in, suggestion, with_place
from agentrl.models.folder import check_folder
from agentrl.models.loading import find_device
from agentrl.rewards.judge.template import JudgeTemplate
from agentrl.rewards.loading import load_reward
from agentrl.trainer.validator import check_metric
from agentrl.utils.yaml_list import read_listing


@pytest.mark.parametrize(
    ("name", "valid", "told"),
    [
        ("gropo", ["gspo", "grpo"], "did you mean 'grpo'?"),
        ("x", ["b", "a"], "valid: a, b"),
        ("x", [], "there are none"),
        ("x", [f"name{number:02}" for number in range(60)], "valid: name00, name01, name02, name03, name04, name05,"),
    ],
)
def test_nearest_name_is_suggested_or_all_names_listed(name, valid, told) -> None:
    assert suggestion(name, valid).startswith(told)


def test_long_lists_of_names_are_truncated() -> None:
    assert suggestion("x", map(str, range(1000, 1060))).endswith("1007 and 52 more")


def test_problem_shows_verl_key_names():
    problem = Problem("a.b", Kind.UNUSED, "`a.b=1` has no effect without `c.d`; see `agentrl config`")
    assert problem.line() == "'a.b=1' has no effect without 'c.d'; see `agentrl config`"
    assert problem.line(str.upper) == "'A.B=1' has no effect without 'C.D'; see `agentrl config`"
    assert problem.mentions("a.b")
    assert problem.mentions("c.d")
    assert problem.mentions("a")
    assert not problem.mentions("d.e")
    assert not problem.mentions("b")  # a part of a name does not count as the key
    assert Problem("", Kind.OTHER, "a.b: no").mentions("a.b")


def test_an_error_keeps_its_problems():
    error = ConfigError(
        problem := Problem("a", Kind.MISSING, "`a` must be given"), *ConfigError.keyless("two", "lines").problems
    )
    assert error.problems == [problem, Problem("", Kind.OTHER, "two"), Problem("", Kind.OTHER, "lines")]
    assert str(error) == "'a' must be given\ntwo\nlines"
    assert str(error.shown_as(str.upper)) == "'A' must be given\ntwo\nlines"
    assert error.shown_as(str.upper).problems[0].key == "a"
    assert problems_in(DataError("rows.jsonl: empty")) == [Problem("", Kind.OTHER, "rows.jsonl: empty")]


def test_an_error_of_another_process_keeps_its_problems():
    error = ConfigError.at("a", Kind.UNUSED, "`a` has no effect")
    assert (
        pickle.loads(pickle.dumps(error)).problems
        == error.problems
        == [Problem("a", Kind.UNUSED, error.problems[0].text)]
    )


def test_a_place_is_added_to_the_text_and_keys_stay():
    error = with_place(ConfigError.at("a", Kind.UNUSED, "`a` has no effect"), "entry 1")
    assert isinstance(error, ConfigError)
    assert error.problems == [Problem("a", Kind.UNUSED, "entry 1: `a` has no effect")]
    assert repr(with_place(DataError("empty"), "row 2")) == "DataError('row 2: empty')"


ONES = torch.ones(1, 1)
POLICY_OPTIONS = "actor.policy_loss.options"


def aggregate(mode: str) -> object:
    return aggregation_weights(mode, [1])


def adapt_kl() -> None:
    AdaptiveKL(init=0.5, target=0.2, horizon=10).update(0.3, 100)


def judge() -> object:
    return load_reward(RewardConfig(name="judge"))


def custom_reward(path: str) -> object:
    return load_reward(RewardConfig(custom_reward_function={"path": path}))


@pytest.mark.parametrize(
    ("fail", "key", "kind"),
    [
        (partial(aggregate, "mean"), "actor.loss_agg_mode", Kind.NOT_FOUND),
        (partial(aggregate, "seq-mean-token-sum-norm"), "actor.loss_agg_mode", Kind.MISSING),
        (partial(policy_loss, "dppo", ONES, ONES, ONES, ONES, divergence="x"), POLICY_OPTIONS, Kind.NOT_FOUND),
        (adapt_kl, "algorithm.kl_ctrl.horizon", Kind.WRONG_VALUE),
        (partial(check_folder, Path("nowhere"), "critic.path"), "critic.path", Kind.NOT_FOUND),
        (partial(find_device, "nowhere", "actor.device"), "actor.device", Kind.WRONG_VALUE),
        (partial(read_entries, Path("nowhere")), "rollout.agent.agent_loop_config_path", Kind.NOT_FOUND),
        (judge, "reward.judge.url", Kind.MISSING),
        (partial(custom_reward, "reward.txt"), "reward.custom_reward_function.path", Kind.WRONG_VALUE),
        (partial(custom_reward, "nowhere.py"), "reward.custom_reward_function.path", Kind.NOT_FOUND),
        (partial(JudgeTemplate, "{{ question }}", ["question"]), "reward.judge.prompt", Kind.WRONG_VALUE),
        (partial(check_metric, "trainer.save_best", "val/x", [], []), "trainer.save_best", Kind.NOT_FOUND),
        (partial(read_listing, Path("nowhere"), "tools"), "", Kind.OTHER),
    ],
)
def test_errors_outside_of_rules_have_key_and_kind(fail: Callable[[], object], key: str, kind: Kind):
    with pytest.raises(ConfigError) as raised:
        fail()
    assert [(problem.key, problem.kind) for problem in raised.value.problems] == [(key, kind)]


KEYS = {key for key, _ in config_fields()}
SECTIONS = {key[: at.start()] for key in KEYS for at in re.finditer(r"\.", key)}
OPEN = {"rollout.sglang.server_args"}  # keys whose value is a mapping of further keys
SOURCES = [
    path
    for path in sorted(Path(agentrl.__file__).parent.rglob("*.py"))
    if not {"verl", "eval", "audit"} & set(path.parts) and re.search(r"ConfigError|Problem\(", path.read_text())
]  # verl and eval report verl's keys; audit has other problems


def names_key(text: str) -> bool:
    return text in KEYS | SECTIONS or text.rpartition(".")[0] in OPEN


@cache
def calls_with_text(path: Path) -> list[tuple[int, str, str]]:
    """Line, function and first literal text of each call with a text."""
    found = []
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Call) and node.args:
            first = node.args[0]
            literal = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                found.append((node.lineno, ast.unparse(node.func), literal.value))
    return found


def calls(path: Path, *names: str) -> Iterator[tuple[int, str]]:
    """Line and first literal text of each call of one of the functions."""
    return ((line, text) for line, function, text in calls_with_text(path) if function in names)


def test_problems_name_keys_that_exist():
    named = [(path, line, key) for path in SOURCES for line, key in calls(path, "ConfigError.at", "Problem")]
    assert len(named) > 100
    assert [each for each in named if each[2] and not names_key(each[2].rstrip("."))] == []


def test_errors_about_a_key_are_made_with_the_key():
    """A ConfigError without a key must not start with one, and a ConfigError is never made from a text alone."""
    texts = [(path, line, text) for path in SOURCES for line, text in calls(path, "ConfigError.keyless")]
    assert len(texts) > 100
    assert [
        each for each in texts if (start := re.match(r"['`]?((?:\w+\.)+\w+)", each[2])) and names_key(start[1])
    ] == []
    assert [each for path in SOURCES for each in calls(path, "ConfigError")] == []
