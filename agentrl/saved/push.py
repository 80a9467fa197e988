"""Upload a checkpoint's weights and its model card to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agentrl.errors import ConfigError
from agentrl.saved.card import model_card
from agentrl.saved.run import Run
from agentrl.utils.hub import MODEL_FILES

CARD = "README.md"
_STATE_FILES = ("run_state.json",)


@dataclass(frozen=True, slots=True)
class Upload:
    """Files of a model and the text of its card, ready to upload."""

    name: str
    files: tuple[Path, ...]
    card: str

    @property
    def num_bytes(self) -> int:
        """Total size, including the card."""
        return sum(file.stat().st_size for file in self.files) + len(self.card.encode())


def prepare_upload(run: Run, name: str, step: int | None = None) -> Upload:
    """Collect the files of the newest checkpoint, or of the checkpoint of `step`, for upload to `name` (`owner/model`).

    Raises:
        ConfigError: the checkpoint does not exist, has no weights, or contains a link.
    """
    checkpoints = run.checkpoints
    if not checkpoints:
        raise ConfigError.keyless(f"'{run.path}' has no checkpoint to upload")
    if (chosen := max(checkpoints) if step is None else step) not in checkpoints:
        raise ConfigError.keyless(
            f"'{run.path}' has no checkpoint of step {step}; steps with one: {', '.join(map(str, checkpoints))}"
        )
    folder = checkpoints[chosen]
    found = {file for pattern in MODEL_FILES for file in folder.glob(pattern) if file.name not in _STATE_FILES}
    files = tuple(sorted(found))
    if links := [file for file in (folder, *files) if file.is_symlink()]:
        raise ConfigError.keyless(f"'{links[0]}' is a link, and push uploads no links: replace it with the file")
    if not any(file.suffix == ".safetensors" for file in files):
        raise ConfigError.keyless(f"'{folder}' contains no weights (*.safetensors)")
    return Upload(name, files, model_card(run, chosen))


def push(upload: Upload, *, private: bool = False) -> str:
    """Upload to the hub and return the URL. huggingface_hub finds the token (`hf auth login` or HF_TOKEN).

    Raises:
        ConfigError: the hub refuses the upload, or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        api = HfApi()
        address = str(api.create_repo(upload.name, private=private, exist_ok=True))
        with _staged(upload) as folder:
            api.upload_folder(repo_id=upload.name, folder_path=folder, commit_message="Upload with agentrl push")
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        line = " ".join(str(error).split())
        raise ConfigError.keyless(f"cannot upload to '{upload.name}': {type(error).__name__}: {line[:300]}") from error
    return address


@contextmanager
def _staged(upload: Upload) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file in upload.files:
            (folder / file.name).symlink_to(file.resolve())
        (folder / CARD).write_text(upload.card, encoding="utf-8")
        yield folder
