import sys

import pytest

from agentrl.errors import UnknownNameError
from agentrl.registry import Registry, load_object


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


def test_an_unknown_name_is_told_the_nearest() -> None:
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


def test_what_does_not_import_is_said_in_one_line(tmp_path) -> None:
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


def test_a_users_own_name_wins_over_an_alias() -> None:
    registry = shapes()
    registry.register("route")(int)
    assert registry.get("route") is int


def test_a_family_answers_for_what_follows_its_prefix() -> None:
    registry: Registry[str] = Registry("sound", families={"loud/": "builtins:ascii"})
    assert registry.get("loud/bang") == "'bang'"
    assert registry.is_builtin("loud/bang")
    assert registry.names() == []  # what they are is the family's to say
    with pytest.raises(UnknownNameError, match="unknown sound 'bang': valid: loud/NAME"):
        registry.get("bang")


def test_a_path_that_begins_like_a_family_is_a_path() -> None:
    registry: Registry[str] = Registry("sound", families={"loud/": "builtins:ascii"})
    assert not registry.is_builtin("loud/mine.py:Bang")
    with pytest.raises(UnknownNameError, match="there is no file"):
        registry.get("loud/mine.py:Bang")
