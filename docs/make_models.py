"""Writes docs/models.md from the code and public chat templates: `make reference`, or `python docs/make_models.py`.

`make templates` downloads the templates.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from agentrl.chat.example import EXAMPLE_TOOLS, QUESTION
from agentrl.chat.format import ChatFormat
from agentrl.chat.model_check import ModelCheck, check_model
from agentrl.chat.parsers.names import AUTO, tool_parsers
from agentrl.cli.chat.output import print_check

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/models.md"
FRAME = ROOT / "docs/models.md.in"
FAMILIES = {
    "llama3_1": "Llama 3.1 and 3.3",
    "llama3_2": "Llama 3.2",
    "llama3": "Llama 3",
    "qwen2_5": "Qwen2.5",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3": "Qwen3",
    "qwen3_instruct_2507": "Qwen3-Instruct-2507",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_5_nothink": "Qwen3.5 (not thinking)",
    "qwen3_5_think": "Qwen3.5 (thinking)",
    "qwen3_6": "Qwen3.6",
    "qwen3_8": "Qwen3.8",
    "gptoss": "gpt-oss",
    "deepseekv3": "DeepSeek-V3",
    "deepseek_r1_distill": "DeepSeek-R1 distilled models",
    "glm4moe": "GLM-4.5",
    "gemma": "Gemma 1 and 2",
    "gemma3": "Gemma 3",
    "gemma4": "Gemma 4",
    "diffusion_gemma": "DiffusionGemma",
    "lfm2": "LFM2",
    "lfm2_2_5": "LFM2.5",
    "lfm2_2_5_vl": "LFM2.5-VL",
    "nemotron_3_nano": "Nemotron 3 Nano",
    "nemotron_3_super": "Nemotron 3 Super",
    "nemotron_3_ultra": "Nemotron 3 Ultra",
    "nemotron_3_5_lightning": "Nemotron 3.5 Lightning",
    "muse_glimmer": "Muse Glimmer",
    "cohere": "Aya Expanse",
    "cohere2": "Tiny Aya",
    "phi3": "Phi-3",
    "phi3_5": "Phi-3.5",
    "idefics3": "Idefics3",
    "llava_next": "LLaVA-NeXT",
    "smolvlm": "SmolVLM",
}
"""Public template -> models that have it."""
_OTHERS = {
    "deepseek_v3.1": "DeepSeek-V3.1",
    "deepseek_v3.2": "DeepSeek-V3.2 and V4",
    "granite": "Granite",
    "kimi_k2": "Kimi K2",
    "mistral": "Mistral",
    "phi4": "Phi-4-mini",
    "tokenizer": "any model whose tokenizer has a `response_template` or `response_schema`",
    "react": "any model, with the tools in the prompt",
}
"""Format -> models that write it, for formats of which the public templates have no example."""
_ACCEPTED = ("model", "format", "calls in a turn", "thoughts of earlier turns", "a turn ends with", "strip", "SFT")
_EXAMPLE = "qwen2_5"
_HEAD = 10  # first lines of the example
Row = tuple[str, ...]


def page() -> str:
    """Return the page: the text of `FRAME` with the tables and an example inserted."""
    sys.path.append(str(ROOT / "tests/chat"))  # the tokenizers of the tests
    from public_templates import NAMES, public_tokenizer

    found = {name: _check(ChatFormat(public_tokenizer(name))) for name in NAMES}
    parts = {
        "example": _example(ChatFormat(public_tokenizer(_EXAMPLE)), found[_EXAMPLE]),
        "accepted": _table(_ACCEPTED, found, _accepted),
        "without tools": _table(("model", "further user messages"), found, _without_tools),
        "refused": _refusals(found),
        "others": _lines(("format", "models"), _others(each.tool_format for each in found.values())),
    }
    text = FRAME.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def _check(chat: ChatFormat) -> ModelCheck:
    return check_model(chat, EXAMPLE_TOOLS, AUTO, [QUESTION])


def _accepted(found: ModelCheck) -> Row | None:
    if found.refusals:
        return None
    calls = "several" if found.parallel_calls else "one"
    also = ("no" if why else "yes" for why in (found.unstripped, found.unsaved))
    return f"`{found.tool_format}`", calls, str(found.thoughts), " ".join(map(_code, found.stop_tokens)), *also


def _has_no_tools(found: ModelCheck) -> bool:
    return "the chat template writes no tool calls" in [each.why for each in found.refusals]


def _without_tools(found: ModelCheck) -> Row | None:
    if not _has_no_tools(found):
        return None
    whys = [each.why for each in found.refusals if each.what == "further user messages"]
    return (f"refused: {whys[0]}" if whys else "accepted",)


def _refusals(found: Mapping[str, ModelCheck]) -> str:
    if not any(map(_refused, found.values())):
        return "All other templates on this page are accepted with tools."
    return "These models are refused with tools:\n\n" + _table(("model", "reason"), found, _refused)


def _refused(found: ModelCheck) -> Row | None:
    if not found.refusals or _has_no_tools(found):
        return None
    return ("; ".join(f"{each.what}: {_short(each.why)}" for each in found.refusals),)


def _short(reason: str) -> str:
    """Return a reason without two details: the list of formats, and the text that no format can read."""
    return re.sub(r"^(no built-in format) \(.*", r"\1 reads the chat template's calls", reason, flags=re.DOTALL)


def _others(chosen: Iterable[str | None]) -> Iterator[tuple[str, ...]]:
    for name in sorted({*tool_parsers.builtins()} - {*chosen}):
        yield f"`{name}`", _OTHERS[name]


def _family(name: str) -> str:
    """Return the models of a template; the ending `_v2` marks a later version of the template."""
    base, _, version = name.rpartition("_v")
    return f"{FAMILIES[base]} (template {version})" if base and version.isdigit() else FAMILIES[name]


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _example(chat: ChatFormat, found: ModelCheck) -> str:
    """Return the check of the example model as `agentrl chat` prints it, without the middle of the prompt."""
    stream = io.StringIO()
    print_check("Qwen/Qwen2.5-1.5B-Instruct", chat, found, Console(file=stream, width=80))
    lines = [line.rstrip() for line in stream.getvalue().rstrip().split("\n")]
    end = next(index for index, line in enumerate(lines) if "Will it" in line.replace("│", "")) - 1
    return "\n".join(["```text", *lines[:_HEAD], "       …", *lines[end:], "```"])


def _table(head: Sequence[str], found: Mapping[str, ModelCheck], row_of: Callable[[ModelCheck], Row | None]) -> str:
    """Return a table of models. Models with equal rows share a row; models without a row are omitted."""
    rows: dict[Row, list[str]] = {}
    for name in sorted(found, key=_family):
        if (row := row_of(found[name])) is not None:
            rows.setdefault(row, []).append(_family(name))
    return _lines(head, [(", ".join(names), *row) for row, names in rows.items()])


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
