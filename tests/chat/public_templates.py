"""Chat templates of public models, which `make templates` downloads, and a small tokenizer for each."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from pathlib import Path

from chat_families import byte_level
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

_FOLDERS = [Path(sys.prefix, "chat_templates"), Path(__file__).parents[2] / ".venv/chat_templates"]
FOLDER = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))
MISSING = "public chat templates are missing: make templates"
if os.environ.get("CI") and not NAMES:
    raise FileNotFoundError(MISSING)

# What looks like a control token: <|name|>, <|name>, <name|>, <｜name｜>, <name>, </name>, [NAME], [/NAME], <|"|>
_MARK = re.compile(r"<[|｜][^|｜<>\s]{1,40}[|｜]?>|<[a-z_]{2,30}\|>|</?[a-z_]{2,30}>|\[/?[A-Z_]{3,20}\]")
_SPECIAL = re.compile(r"<[|｜].*|.*\|>|<(bos|eos|start_of_turn|end_of_turn)>|\[.*\]")


def template_text(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@lru_cache
def public_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the public template `name`, whose control tokens are single tokens."""
    text = template_text(name)
    tokenizer = Tokenizer.from_str(byte_level("chatml"))
    marks = sorted({*_MARK.findall(text), "<bos>", "<eos>"})
    tokenizer.add_tokens([AddedToken(mark, special=bool(_SPECIAL.fullmatch(mark)), normalized=False) for mark in marks])
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    found.chat_template = text
    return found
