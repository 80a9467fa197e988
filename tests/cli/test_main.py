import subprocess
import sys

import pytest
import yaml

from agentrl import __version__
from agentrl.cli.compose import compose_config
from agentrl.cli.main import main
from agentrl.errors import ConfigError


def test_keys_work_without_plus_and_values_are_typed() -> None:
    config = compose_config(["model.path=m", "rollout.n=4", "actor.optim.lr=1e-3", "data.train_files=[a,b]"])
    assert (config.rollout.n, config.actor.optim.lr, config.data.train_files) == (4, 1e-3, ("a", "b"))


def test_custom_config_folder_is_searched(tmp_path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nmodel: {path: m}\nrollout: {n: 3}\n")
    for choice in ("+experiment=mine", "experiment=mine"):
        assert compose_config([choice, "rollout.temperature=0.5"], tmp_path).rollout.n == 3


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["+experiment=calculater"], "there is no experiment 'calculater': did you mean 'calculator'?"),
        (["model.path=m", "rollot.n=3"], "unknown key 'rollot': did you mean 'rollout'?"),
        (["model.path=m", "rollot=3"], "unknown key 'rollot': did you mean 'rollout'?"),
        (["experiment=3"], "there is no experiment '3'"),
        (
            ["model.path=a[b"],
            "cannot read 'model.path=a[b': mismatched input '[' expecting <EOF>; "
            "to pass it as text, quote it twice: 'model.path=\"a[b\"'",
        ),
        (
            ["model.path=a,b"],
            "'model.path=a,b' has several values: write 'model.path=[a,b]' for a list, 'model.path=\"a,b\"' for text",
        ),
        (["model.path=m", "a b"], "cannot read 'a b': "),
        ([], "'model.path' must be given"),
    ],
)
def test_mistakes_are_one_line_and_status_2(overrides, complaint, capsys) -> None:
    assert main(["config", "trainer.seed=1", *overrides]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
    assert len(said.err.splitlines()) == 1


def test_value_quoted_as_suggested_is_accepted() -> None:
    assert compose_config(['model.path="a[b"']).model.path == "a[b"


def test_version_is_printed(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"agentrl {__version__}\n")


def test_traceback_is_shown_on_request() -> None:
    with pytest.raises(ConfigError):
        main(["config", "--traceback", "model.pth=m"])


def test_config_describes_keys_and_resolves(capsys) -> None:
    assert main(["config", "rollout", "temperature"]) == 0
    assert "rollout.temperature = 1.0" in capsys.readouterr().out
    assert main(["config", "algorithm.name"]) == 0
    assert "PPO: a critic and generalised advantage estimation" in capsys.readouterr().out
    assert main(["config", "model.path=m", "rollout.n=2"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["rollout"]["n"] == 2
    assert main(["config", "tempereture"]) == 2


def test_a_wrong_key_is_refused_before_anything_heavy_loads() -> None:
    script = (
        "import sys; from agentrl.cli.main import main;"
        "keys = ['model.path=m/m/m', 'rollout.nn=3', 'rollout.n=1', 'data.train_files=a.jsonl'];"
        "status = main(['train', *keys]);"
        "print(status, sorted({'torch', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 []"
    unknown, one, data, model = (line.removeprefix("agentrl: error: ") for line in done.stderr.splitlines())
    assert unknown == "unknown key 'rollout.nn': did you mean 'rollout.n'?"
    assert one.startswith("'rollout.n=1' makes every advantage 0, because grpo")
    assert data.startswith("data.train_files: a.jsonl: no such file")
    assert model == "model.path: there is no folder 'm/m/m'"
