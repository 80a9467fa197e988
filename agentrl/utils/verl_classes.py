"""verl's tool, interaction and reward classes that configuration files may name, and their replacements in agentrl.

Files that name one of these classes load unchanged if agentrl has a class with the same configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.errors import ConfigError, suggestion


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replacement of a verl class.

    Attributes:
        target: agentrl's class with the same configuration; None: there is none, and the class is refused.
        instead: what to use in place of a refused class.
    """

    target: str | None = None
    instead: str = ""


def _refused(instead: str) -> Replacement:
    return Replacement(None, instead)


_GSM8K_TOOL = Replacement("agentrl.tools.gsm8k.Gsm8kTool")
_NO_IMAGES = (
    "training on images is not supported; for agentrl eval, subclass agentrl.tools.base.BaseTool and return"
    " ToolResponse(image=[...])"
)
_BASE_TOOL = "subclass agentrl.tools.base.BaseTool and name your class"
SANDBOX_FUSION_TOOL = "verl.tools.sandbox_fusion_tools.SandboxFusionTool"
_MCP = "needs the key 'mcp' with 'mcp_servers_config_path'; an entry with this key loads unchanged (docs/mcp.md)"

TOOLS: Mapping[str, Replacement] = {
    "verl.tools.gsm8k_tool.Gsm8kTool": _GSM8K_TOOL,
    "verl.workers.tool.gsm8k_tool.Gsm8kTool": _GSM8K_TOOL,
    "verl.tools.geo3k_tool.Geo3kTool": _refused(_NO_IMAGES),
    "verl.tools.image_zoom_in_tool.ImageZoomInTool": _refused(_NO_IMAGES),
    SANDBOX_FUSION_TOOL: Replacement("agentrl.tools.verl_sandbox.fusion_tool"),
    "verl.tools.search_tool.SearchTool": Replacement("agentrl.tools.search.verl_tool.SearchTool"),
    "verl.tools.mcp_base_tool.MCPBaseTool": _refused(_MCP),
    "verl.tools.mcp_search_tool.MCPSearchTool": _refused(_MCP),
    "verl.tools.base_tool.BaseTool": _refused(_BASE_TOOL),
}
"""verl class that `class_name` in a tool file may name -> replacement."""

_BASE_INTERACTION = "subclass agentrl.interactions.base.BaseInteraction and name your class"

INTERACTIONS: Mapping[str, Replacement] = {
    "verl.interactions.gsm8k_interaction.Gsm8kInteraction": Replacement("agentrl.interactions.gsm8k.Gsm8kInteraction"),
    "verl.interactions.weather_interaction.WeatherInteraction": _refused(_BASE_INTERACTION),
    "verl.interactions.collabllm_interation.CollabLLMInteraction": _refused(
        "use 'class_name: model_user' with 'model', 'max_tokens', 'temperature' and 'max_retries'"
        " (docs/simulated-users.md)"
    ),
    "verl.interactions.base.BaseInteraction": _refused(_BASE_INTERACTION),
}
"""verl class that `class_name` in an interaction file may name -> replacement."""

_SCORES = {
    "gsm8k": "gsm8k",
    "math_reward": "math",
    "math": "math",
    "math_verify": "math",
    "math_dapo": "math_dapo",
    "geo3k": "geo3k",
    "search_r1_like_qa_em": "search_qa",
    "sandbox_fusion": "code",
    "prime_code": "code",
    "prime_math": "math",
}
REWARDS: Mapping[str, str] = {
    f"verl.utils.reward_score.{module}.compute_score": name for module, name in _SCORES.items()
}
"""verl's reward function -> `reward.name` that returns the same scores, or at least grades the same kind of answer."""

MANAGERS: Mapping[str, str] = {
    **{
        f"verl.workers.reward_manager.{name}.{kind}": name
        for name, kind in (
            ("naive", "NaiveRewardManager"),
            ("dapo", "DAPORewardManager"),
            ("prime", "PrimeRewardManager"),
            ("batch", "BatchRewardManager"),
        )
    },
    **{
        f"verl.experimental.reward_loop.reward_manager.{name}.{kind}": name
        for name, kind in (
            ("naive", "NaiveRewardManager"),
            ("dapo", "DAPORewardManager"),
        )
    },
    "verl.experimental.reward_loop.reward_manager.limited.RateLimitedRewardManager": "rate_limited",
}
"""Class of a verl reward manager -> the name of this reward manager in verl commands."""

IMPORTS = (
    "verl is not needed: import BaseTool, ToolResponse and OpenAIFunctionToolSchema from agentrl.tools, BaseInteraction"
    " from agentrl.interactions.base, and agent loops from agentrl.compat.verl"
)
"""Hint for a user's file that imports verl, which is not installed."""


def replaced(name: str, classes: Mapping[str, Replacement], base: str) -> str:
    """Return the class to load for `name`. A name that does not begin with `verl.` is returned unchanged.

    Args:
        base: the class that a user's class must extend; error messages name it.

    Raises:
        ConfigError: agentrl has no class with this configuration; the message names an alternative.
    """
    name = name.replace(":", ".") if name.startswith("verl.") else name
    if not name.startswith("verl."):
        return name
    known = classes.get(name)
    if known is None:
        near = suggestion(name, [each for each, found in classes.items() if found.target])
        raise ConfigError.keyless(f"'{name}' belongs to verl: name a subclass of {base} instead ({near})")
    if known.target is None:
        raise ConfigError.keyless(f"'{name}' belongs to verl: {known.instead}")
    return known.target


def reward_in_place_of(path: str) -> str | None:
    """Return the `reward.name` for a file or module of verl's rewards, such as `verl/utils/reward_score/gsm8k.py`.

    None if agentrl has no such reward.
    """
    module = re.search(r"verl[./]utils[./]reward_score[./](\w+)", path)
    return _SCORES.get(module[1]) if module else None
