"""Runs with images in rows and tools: generation, evaluation and storage work; training on them is refused."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from vision_models import picture, save_vision_model

from agentrl.cli.main import main
from agentrl.store import TrajectoryStore
from agentrl.types.trajectory import Author
from agentrl.utils.images import content_hash, data_url
from agentrl.viewer.rollout_page import shown_rollout
from agentrl.viewer.tokens import TokenTexts

IMAGE_ID = 261
PARSER = """
from agentrl.chat.base import ParsedCall, ParsedTurn
from agentrl.chat.parsers.hermes import HermesParser

class Calling:
    '''Whatever random weights write, it is a call; its turn ends with the first letter.'''
    stop = tuple(map(chr, range(33, 127)))
    def parse(self, text):
        read = HermesParser().parse(text)
        return read if read.calls else ParsedTurn(text, (ParsedCall("look", '{"closer": true}'),))
"""
TOOLS = """
from PIL import Image
from agentrl.tools import ToolResponse, tool

@tool
def look(closer: bool) -> str:
    '''Look closer.

    Args:
        closer: whether to.
    '''
    return ToolResponse(text="a closer look", image=[%s])
"""
BLUE = 'Image.new("RGB", (24, 24), "blue")'
REWARD = "def compute_score(data_source, solution_str, ground_truth):\n    return float(len(solution_str) % 2)\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_vision_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parser.py").write_text(PARSER)
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "tools.py").write_text(TOOLS % BLUE)
    (tmp_path / "red.png").write_bytes(picture("red"))
    rows = [
        {"prompt": [{"role": "user", "content": "What is <image> here?"}], "images": [{"bytes": picture("red")}]},
        {"prompt": [{"role": "user", "content": "<image><image>"}], "images": [{"path": "red.png"}] * 2},
    ]
    kind = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    columns = {
        "prompt": pa.array([row["prompt"] for row in rows]),
        "images": pa.array([r["images"] for r in rows], kind),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    return tmp_path


def words(model: Path, *overrides: str, files: str = "train_files=[rows.parquet]") -> list[str]:
    loop = ["rollout.agent.default_agent_loop=tool_agent", "rollout.multi_turn.format=parser.py:Calling"]
    limits = ["max_assistant_turns=3", "max_turn_tokens=40", "function_tool_path=tools.py"]
    return [
        *(f"model.path={model}", "model.dtype=float32", f"data.{files}", "data.train_batch_size=2", *loop),
        *(f"rollout.multi_turn.{limit}" for limit in limits),
        *("data.max_prompt_length=400", "data.max_response_length=400", "trainer.default_local_dir=run"),
        *("reward.custom_reward_function.path=reward.py", "rollout.device=cpu", *overrides),
    ]


@pytest.mark.slow
def test_tool_image_is_kept_in_a_generated_rollout(here, model):
    assert main(["generate", *words(model, "rollout.n=2")]) == 0
    store = TrajectoryStore(Path("run/trajectories/train"))
    first, second = store.groups(store.steps[0])
    red, blue = (
        content_hash(picture("red")),
        next(iter(set(first.rollouts[0].trajectories[0].media) - {content_hash(picture("red"))})),
    )
    for group, num_images in ((first, 1), (second, 2)):
        for rollout in group.rollouts:
            (trajectory,) = rollout.trajectories
            assert [each.author for each in trajectory.segments] == [
                *(Author.PROMPT, Author.MODEL, Author.TOOL, Author.MODEL, Author.TOOL, Author.MODEL)
            ]
            assert trajectory.media == [red] * num_images + [blue] * 2
            trained = [token for token, on in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if on]
            assert trained == [token for part in trajectory.segments[1::2] for token in part.token_ids]
            shown = [part.token_ids.count(IMAGE_ID) for part in trajectory.segments[::2]]
            assert shown == [8 * num_images, 9, 9]
            assert trajectory.messages[2]["content"] == [
                {"type": "image", "image": blue},
                {"type": "text", "text": "a closer look"},
            ]
    assert sorted(file.name for file in Path("run/media").iterdir()) == sorted([f"{red}.png", f"{blue}.png"])
    assert store.media(red) == picture("red")
    assert Image.open(BytesIO(store.media(blue))).getpixel((0, 0)) == (0, 0, 255)


@pytest.mark.slow
def test_rows_with_images_are_evaluated(here, model):
    assert main(["eval", *words(model, files="val_files=[rows.parquet]")]) == 0
    assert json.loads(Path("run/eval.json").read_text())["overall"]["num_rollouts"] == 2
    assert len(list(Path("run/media").iterdir())) == 2


@pytest.mark.slow
def test_replay_reads_rollouts_with_images(here, model, capsys):
    assert main(["generate", *words(model)]) == 0
    reward = "--reward=reward.py:compute_score"
    store = TrajectoryStore(Path("run/trajectories/train"))
    stored = next(store.scan())
    shown = json.dumps(shown_rollout(stored, TokenTexts(None)))
    # in the token segments and in the messages
    assert all(shown.count(name) > 1 for name in stored.rollout.trajectories[0].media)
    for mode in ("rescore", "audit"):
        assert main(["replay", "run", mode, "--allow-unchecked", reward]) == 0
    again = ["tools", reward, "rollout.multi_turn.format=parser.py:Calling", f"model.path={model}"]
    assert main(["replay", "run", *again]) == 2
    assert "contains images, and replay cannot re-run images yet" in capsys.readouterr().err


def test_training_on_images_is_refused_by_the_row(here, model, capsys):
    assert main(["train", *words(model, "rollout.n=2")]) == 2
    told = capsys.readouterr().err
    assert "rows.parquet row 0: field 'images': training on images is not supported: use `agentrl generate`" in told


@pytest.mark.slow
def test_training_on_stored_rollouts_with_images_is_refused(here, model, capsys):
    assert main(["generate", *words(model)]) == 0
    text = ["trainer.mode=train_only", "trainer.saved_rollouts=run", "trainer.default_local_dir=again"]
    assert main(["train", *words(model, *text)]) == 2
    assert "its rollouts have images" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("image", "outcome", "result"),
    [
        (
            'b"no image"',
            "tool_error",
            "Error: the tool returned an image that cannot be used: its 8 bytes are not an image",
        ),
        (
            '"nowhere.png"',
            "tool_error",
            "Error: the tool returned an image that cannot be used: cannot read 'nowhere.png'",
        ),
        (repr(data_url(picture("green"))), "ok", "a closer look"),
    ],
)
def test_tool_answers_with_supported_images(here, model, image, outcome, result):
    (here / "tools.py").write_text(TOOLS % image)
    assert main(["generate", *words(model)]) == 0
    store = TrajectoryStore(Path("run/trajectories/train"))
    for stored in store.scan():
        call = stored.rollout.tool_calls[0]
        assert (call.outcome, call.result[: len(result)]) == (outcome, result)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("images", "prompt", "expected"),
    [
        (["red.png"], "No place.", "field 'images': 1 images, but the prompt has 0 placeholders (<image>,"),
        (["red.png"], "<image> <image>", "field 'images': 1 images, but the prompt has 2 placeholders"),
        (["gone.png"], "<image>", "field 'images[0]': cannot read 'gone.png': No such file"),
        (["rows.parquet"], "<image>", "bytes are not an image of a known format"),
        (["http://x/y.png"], "<image>", "field 'images[0]': 'http://x/y.png' is an address: download the file"),
        ([data_url(picture())[:-40]], "<image>", "field 'images[0]': it"),
    ],
)
def test_rows_that_cannot_be_used_are_named(here, model, capsys, images, prompt, expected):
    (here / "rows.jsonl").write_text(json.dumps({"prompt": prompt, "images": images}) + "\n")
    assert main(["generate", *words(model, files="train_files=[rows.jsonl]")]) == 2
    told = capsys.readouterr().err
    assert "rows.jsonl row 0" in told
    assert expected in told


@pytest.mark.slow
def test_model_without_processor_is_an_error_with_the_row(here, model, capsys, tmp_path):
    without = save_vision_model(tmp_path / "blind")
    (without / "preprocessor_config.json").unlink()
    assert main(["generate", *words(without)]) == 2
    told = capsys.readouterr().err
    assert (
        f"rows.parquet row 0: field 'images': the model at '{without}' does not support images, or has no processor"
        in told
    )


def test_sglang_does_not_support_images(here, model, capsys):
    assert main(["generate", *words(model, "rollout.engine=sglang", "~rollout.device")]) == 2
    assert (
        "field 'images': 'rollout.engine=sglang' does not support images: use 'rollout.engine=torch'"
        in capsys.readouterr().err
    )
