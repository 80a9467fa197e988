import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import UnknownNameError
from agentrl.registry import Registry, child_path, give, load_object


def shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape", builtin={"path": "pathlib:Path"}, aliases={"route": "path"})

    @registry.register("round")
    class Round: ...

    return registry


def test_registered_builtin_alias_and_path() -> None:
    from pathlib import Path

    registry = shapes()
    assert registry.get("round").__name__ == "Round"
    assert registry.get("path") is registry.get("route") is registry.get("pathlib:Path") is Path
    assert registry.names() == ["path", "round"]


def test_unknown_name_gets_the_nearest_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown shape 'rond': did you mean 'round'\?"):
        shapes().get("rond")
    with pytest.raises(UnknownNameError, match="valid: path, round, route"):
        shapes().get("zzz")


def test_a_file_is_imported_once_by_its_path(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Mine: ...\n")
    assert load_object(f"{file}:Mine") is load_object(f"{file}:Mine")
    with pytest.raises(UnknownNameError, match="has no 'Mime': did you mean 'Mine'"):
        load_object(f"{file}:Mime")


def test_failing_import_is_a_one_line_error(tmp_path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name\n")
    before = set(sys.modules)
    for target, complaint in [
        (f"{broken}:X", "No module named 'nothing_of_that_name'"),
        (f"{tmp_path}/absent.py:X", "there is no file"),
        ("no.such.module:X", "cannot import 'no.such.module'"),
        ("word", "is not 'pkg.module:Name'"),
    ]:
        with pytest.raises(UnknownNameError, match=complaint) as raised:
            load_object(target)
        assert "\n" not in str(raised.value)
    assert {name for name in set(sys.modules) - before if name.startswith("agentrl_user")} == set()


def test_name_given_by_the_user_overrides_an_alias() -> None:
    registry = shapes()
    registry.register("route")(int)
    assert registry.get("route") is int


def test_a_family_resolves_names_with_its_prefix() -> None:
    registry: Registry[str] = Registry("sound", families={"loud/": "builtins:ascii"})
    assert registry.get("loud/bang") == "'bang'"
    assert registry.is_builtin("loud/bang")
    assert registry.names() == []  # only the family knows its names
    with pytest.raises(UnknownNameError, match="unknown sound 'bang': valid: loud/NAME"):
        registry.get("bang")


def test_a_path_that_begins_like_a_family_is_a_path() -> None:
    registry: Registry[str] = Registry("sound", families={"loud/": "builtins:ascii"})
    assert not registry.is_builtin("loud/mine.py:Bang")
    with pytest.raises(UnknownNameError, match="there is no file"):
        registry.get("loud/mine.py:Bang")


@pytest.fixture
def own_modules(monkeypatch):
    """Restores modules and import folders after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_working_folder_is_importable(tmp_path, monkeypatch, own_modules) -> None:
    (tmp_path / "shelf_tools.py").write_text("class FindShelf: ...\n")
    monkeypatch.chdir(tmp_path)
    assert load_object("shelf_tools.FindShelf") is load_object("shelf_tools:FindShelf")


def test_file_can_import_modules_of_its_folder(tmp_path, own_modules) -> None:
    (tmp_path / "depot_stock.py").write_text("shelves = {}\n")
    (tmp_path / "depot_tools.py").write_text("from depot_stock import shelves\n")
    (tmp_path / "depot_loop.py").write_text("from depot_tools import shelves\n")
    shelves = load_object(f"{tmp_path}/depot_tools.py:shelves")
    assert load_object(f"{tmp_path}/depot_loop.py:shelves") is shelves
    assert load_object(f"{tmp_path}/depot_stock.py:shelves") is shelves


KINDS = {
    "tool": "from agentrl.tools import tool\n@tool\ndef act() -> str:\n    'Act.'\n    return WORD\n",
    "world": "class World:\n    def act(self) -> str:\n        'Act.'\n        return WORD\n",
    "reward": "def compute_score(solution_str):\n    return float(len(WORD))\n",
    "loop": "from agentrl.agent_loops import AgentLoop\nclass Loop(AgentLoop):\n    word = WORD\n",
}


def test_code_of_every_kind_imports_its_neighbours(tmp_path, own_modules) -> None:
    from agentrl.agent_loops import agent_loops
    from agentrl.config.reward import CustomRewardConfig, RewardConfig
    from agentrl.rewards.base import close_reward
    from agentrl.rewards.loading import load_reward
    from agentrl.tools.environments.spec import load_environment
    from agentrl.tools.loading import functions_of

    files = {}
    for kind, text in KINDS.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / f"word_of_{kind}.py").write_text(f"WORD = '{kind}'\n")
        (folder / "random.py").write_text("raise SystemExit('this replaced the standard library')\n")
        files[kind] = folder / "code.py"
        files[kind].write_text(f"import random\nfrom word_of_{kind} import WORD\n{text}")
    (act,) = functions_of(files["tool"])
    assert act.function() == "tool"
    assert load_environment(f"{files['world']}:World").make().act() == "world"
    close_reward(load_reward(RewardConfig(custom_reward_function=CustomRewardConfig(path=files["reward"]))))
    assert agent_loops.get(f"{files['loop']}:Loop").word == "loop"
    assert "random" in sys.modules
    assert str(tmp_path) not in str(sys.modules["random"].__file__)


def test_two_neighbours_of_one_name_are_not_confused(tmp_path, own_modules) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shared_word.py").write_text(f"WORD = '{folder}'\n")
        (tmp_path / folder / f"user_{folder}.py").write_text("from shared_word import WORD\n")
    assert load_object(f"{tmp_path}/one/user_one.py:WORD") == "one"
    with pytest.raises(UnknownNameError, match=r"two/user_two.py' imports 'shared_word', which is '.*one/shared_word"):
        load_object(f"{tmp_path}/two/user_two.py:WORD")


def test_a_users_file_never_replaces_a_library(tmp_path, monkeypatch, own_modules) -> None:
    (tmp_path / "json.py").write_text("mine = True\n")
    (tmp_path / "user_of_json.py").write_text("import json\nloads = json.loads\n")
    monkeypatch.chdir(tmp_path)
    assert load_object("user_of_json:loads") is __import__("json").loads
    assert load_object("json.py:mine") is True


def test_worker_processes_import_the_standard_library_first(tmp_path, monkeypatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    command = [sys.executable, "-P", "-c", "import json, sys; print(json.__file__, sys.path[-1])"]
    ran = subprocess.run(command, env={"PYTHONPATH": child_path()}, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in ran.stdout.split()[0]
    assert str(Path.cwd()) in child_path().split(":")


def test_object_is_stored_under_a_readable_name() -> None:
    def mine() -> None: ...

    name = give(mine)
    assert name == f"{__name__}:test_object_is_stored_under_a_readable_name.<locals>.mine"
    assert load_object(name) is mine
    assert shapes().get(name) is mine
    assert not shapes().is_builtin(name)
    for gone in ("__main__:other", "some.module:make.<locals>.other"):
        with pytest.raises(UnknownNameError, match="was passed from Python: start the run from Python again"):
            load_object(gone)
