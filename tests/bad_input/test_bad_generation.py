"""Models that never stop or return NaN, and agent loops that return garbage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

SAMPLED = ["rollout.engine=torch", "rollout.script_path=null"]


def overflowing(model: Path, folder: Path) -> Path:
    """A copy of the model with finite weights and non-finite logits."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"].fill_(1e38)
    weights["model.embed_tokens.weight"].mul_(1e3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "eval"])
def test_nan_while_sampling_names_the_weights_and_their_step(bad, command):
    folder = overflowing(bad.model, bad.folder / "model")
    options = [f"model.path={folder}", f"data.val_files={bad.folder}/train.jsonl", *SAMPLED]
    line = bad.refused(*options, "trainer.val_before_train=false", command=command)
    assert "rollouts failed; the first: NonFiniteLogitsError: the model's logits are NaN" in line
    assert "with the weights of step 0: weights diverged (see actor.optim.lr) or overflow (see rollout.dtype)" in line


@pytest.mark.slow
def test_nan_while_training_skips_the_update_and_is_warned_of(bad):
    folder = overflowing(bad.model, bad.folder / "model")
    bad.write("reward.py", "scores = iter(range(8))\ndef compute_score():\n    return next(scores)\n")
    row = bad.goes_on(f"model.path={folder}")
    assert row["actor/skipped_updates"] == 1
    assert "actor/grad_norm" not in row  # no update was made
    (warning, *_) = (bad.folder / "run/warnings.jsonl").read_text().splitlines()
    assert "an update was skipped: lower actor.optim.lr, or check for overflow" in json.loads(warning)["warning"]


@pytest.mark.slow
def test_model_that_never_ends_its_turn_reaches_the_limits(bad):
    bad.write("script.py", "def reply(context):\n    return 'word ' * 5000\n")
    row = bad.goes_on()
    assert row["stop/max_response_tokens"] == 1.0
    assert row["response_length/max"] == 128


@pytest.mark.slow
def test_model_that_never_stops_calling_reaches_the_limits(bad):
    bad.calls("calculator", expression="1+1")
    text = (bad.folder / "script.py").read_text()
    bad.write("script.py", text.replace("<tool_response>", "never"))
    bad.write("tools.yaml", "tools: [{name: calculator}]")
    tools = [f"rollout.multi_turn.tool_config_path={bad.folder}/tools.yaml", "data.max_response_length=512"]
    loop = "rollout.agent.default_agent_loop=tool_agent"
    row = bad.goes_on(*tools, loop, "rollout.multi_turn.max_assistant_turns=3")
    assert (row["stop/max_assistant_turns"], row["num_turns/max"]) == (1.0, 3)


LOOP = """from agentrl.agent_loops import AgentLoop
from agentrl.types.rollout import *
from agentrl.types.trajectory import *

class Mine(AgentLoop):
"""
SAMPLED_BY_NOBODY = "Segment(Author.MODEL, [5], logprobs=[0.0], policy_versions=(VersionSpan(0, 1),))"


def with_loop(bad, body: str, run: str = "async def run(self, task, generate, tools, interaction, sampling)") -> str:
    bad.write("loop.py", f"{LOOP}    {run}:\n        {body}\n")
    return f"rollout.agent.default_agent_loop={bad.folder}/loop.py:Mine"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return None", "run must return a Rollout, not NoneType"),
        ("return {'reward': 1}", "run must return a Rollout, not dict"),
        ("return Rollout([], stop='done')", "rollout.stop must be a Stop, not 'done'"),
        ("return Rollout([[1, 2]], stop=Stop.FINISHED)", "trajectory 0 must be a Trajectory, not list"),
        (
            f"return Rollout([Trajectory([Segment(Author.PROMPT, [1]), {SAMPLED_BY_NOBODY}])], stop=Stop.FINISHED)",
            "trajectory 0: ",
        ),
        ("raise ValueError('my own mistake')", "ValueError: my own mistake"),
    ],
)
def test_loop_with_an_invalid_return_value_fails(bad, body, complaint):
    line = bad.refused(with_loop(bad, body))
    assert line.startswith("all 8 rollouts failed; the first: ")
    assert complaint in line
    assert f"({bad.folder}/loop.py:" in line


@pytest.mark.slow
def test_unusable_agent_loop_is_refused(bad):
    key = "rollout.agent.default_agent_loop"
    assert "did you mean 'tool_agent'?" in bad.refused(f"{key}=tool_agnt")
    with_loop(bad, "pass")
    assert "did you mean 'Mine'?" in bad.refused(f"{key}={bad.folder}/loop.py:Mien")
    bad.write("other.py", "class Mine:\n    def __init__(self, *given): pass\n")
    assert "must be a subclass of agentrl.agent_loops.AgentLoop" in bad.refused(f"{key}={bad.folder}/other.py:Mine")
    assert f"add the object's name, '{bad.folder}/other.py:Name'" in bad.refused(f"{key}={bad.folder}/other.py")
    file = bad.write("broken.py", "class Mine(:\n")
    assert f"SyntaxError: invalid syntax ({file}:1)" in bad.refused(f"{key}={file}:Mine")
