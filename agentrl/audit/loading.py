"""The tokenizer of a run, found on this machine; nothing is downloaded, and no code that comes with one is run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.audit.known import Json
from agentrl.audit.speech import Speech


def load_speech(
    folders: Sequence[str], template: str | None, variables: Mapping[str, Json], wanted: Mapping[str, str]
) -> tuple[Speech | None, str]:
    """The first tokenizer of `folders` whose hashes are `wanted`, else the first there is; None and why if none is.

    Nothing is downloaded, and no code that comes with a tokenizer is run.

    Args:
        template: a Jinja file in place of the tokenizer's own.
    """
    from transformers import AutoTokenizer

    found, why = list[Speech](), "it is not known which tokenizer was used"
    for folder in folders:
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            if template:
                tokenizer.chat_template = Path(template).read_text(encoding="utf-8")
        except Exception:  # a folder that is gone, damaged or foreign fails in a dozen ways
            why = f"no tokenizer can be loaded from '{folder}'"
            continue
        speech = Speech(tokenizer, variables, num_model_ids(folders))
        if wanted.items() <= speech.hashes().items():
            return speech, ""
        found.append(speech)
    return (found[0], "") if found else (None, why)


def num_model_ids(folders: Sequence[str]) -> int:
    """What the first model's configuration says; 0 where there is none that can be read."""
    for folder in folders:
        path = Path(folder) / "config.json"
        if path.is_file():
            try:
                said = json.loads(path.read_text(encoding="utf-8"))
                return int(said.get("vocab_size") or said.get("text_config", {}).get("vocab_size") or 0)
            except (OSError, ValueError, TypeError, AttributeError):  # damaged, or of another shape
                continue
    return 0
