"""Images of rollouts, each saved once under its content hash: `<run>/media/<sha256>.png`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from agentrl.errors import DataError
from agentrl.store.schema import TRAJECTORIES
from agentrl.types.rollout import Group
from agentrl.utils.atomic_files import atomic_file
from agentrl.utils.images import content_hash, ending

MEDIA = "media"
_NAME = re.compile(r"[0-9a-f]{64}")


def media_folder(trajectories: Path) -> Path:
    """Return the folder `media`: in the run's folder if `trajectories` is in a run, else in `trajectories`."""
    in_run = trajectories.parent.name == TRAJECTORIES
    return (trajectories.parent.parent if in_run else trajectories) / MEDIA


def write_media(folder: Path, groups: Iterable[Group]) -> None:
    """Save the in-memory images of these rollouts and their tasks; existing files are not changed."""
    for group in groups:
        of_rollouts = [trajectory.images for rollout in group.rollouts for trajectory in rollout.trajectories]
        for images in (group.task.images, *of_rollouts):
            for name, data in images.items():
                _write(folder, name, data)


def read_media(folder: Path, name: str) -> bytes:
    """Read the image with content hash `name`.

    Raises:
        DataError: the image is missing, or its bytes do not match the hash.
    """
    path = next(iter(sorted(folder.glob(f"{name}.*"))), None) if _NAME.fullmatch(name) else None
    if path is None:
        raise DataError(f"{folder}: there is no image '{name[:80]}'")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if content_hash(data) != name:
        raise DataError(f"{path}: damaged: its content does not match the hash in its name")
    return data


def _write(folder: Path, name: str, data: bytes) -> None:
    path = folder / f"{name}.{ending(data)}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(data)
