"""Images beside the store: each is saved once under its content hash, and read back byte for byte."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vision_models import picture

from agentrl.errors import DataError
from agentrl.store import TrajectoryStore
from agentrl.store.media import media_folder
from agentrl.types.messages import image_part
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan
from agentrl.utils.images import content_hash

PICTURES = [picture(color) for color in ("red", "green", "blue")]
NAMES = [content_hash(data) for data in PICTURES]


def group_of(uid: str, shown: list[list[int]]) -> Group:
    """A rollout with one segment per list of pictures; the first list belongs to the prompt."""
    trajectory = Trajectory()
    for number, pictures in enumerate(shown):
        if number:
            trajectory.append(Segment(Author.MODEL, [7], [-0.5], [VersionSpan(0, 1)]))
        author = Author.TOOL if number else Author.PROMPT
        trajectory.append(Segment(author, [1, *[2] * len(pictures)], media=tuple(NAMES[each] for each in pictures)))
        trajectory.messages.append({"role": author, "content": [image_part(NAMES[each]) for each in pictures]})
        trajectory.images.update({NAMES[each]: PICTURES[each] for each in pictures})
    images = {NAMES[each]: PICTURES[each] for each in shown[0]}
    return Group(Task(trajectory.messages[:1], uid=uid, images=images), [Rollout([trajectory], Stop.FINISHED)])


@pytest.mark.slow
@settings(max_examples=25)  # each example writes files
@given(st.lists(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=3), min_size=1, max_size=4))
def test_images_are_read_back(rollouts):
    with TemporaryDirectory() as folder:
        store = TrajectoryStore(Path(folder) / "trajectories" / "train")
        groups = [group_of(f"t{number}", shown) for number, shown in enumerate(rollouts)]
        store.write(3, groups)
        for group, shown in zip(store.groups(3), rollouts, strict=True):
            (trajectory,) = group.rollouts[0].trajectories
            assert [store.media(name) for name in trajectory.media] == [PICTURES[n] for part in shown for n in part]
        kept = {number for shown in rollouts for part in shown for number in part}
        found = sorted(file.name for file in (Path(folder) / "media").glob("*"))
        assert found == sorted(f"{NAMES[number]}.png" for number in kept)


def test_an_image_is_written_once(tmp_path):
    store = TrajectoryStore(tmp_path / "trajectories" / "val")
    store.write(0, [group_of("a", [[0]])])
    (file,) = (tmp_path / "media").iterdir()
    before = file.stat()
    store.write(1, [group_of("b", [[0], [0]])])
    assert file.stat() == before


def test_media_folder_outside_a_run(tmp_path):
    assert media_folder(tmp_path / "elsewhere") == tmp_path / "elsewhere" / "media"
    assert TrajectoryStore(tmp_path).write(0, [group_of("a", [[1]])]).exists()
    assert TrajectoryStore(tmp_path).media(NAMES[1]) == PICTURES[1]


def test_missing_damaged_and_foreign_names(tmp_path):
    store = TrajectoryStore(tmp_path)
    store.write(0, [group_of("a", [[0]])])
    file = tmp_path / "media" / f"{NAMES[0]}.png"
    file.write_bytes(b"other")
    with pytest.raises(DataError, match=r"\.png: damaged: its content does not match the hash in its name"):
        store.media(NAMES[0])
    for name in (NAMES[1], "../step-000000", "*"):
        with pytest.raises(DataError, match="there is no image"):
            store.media(name)
