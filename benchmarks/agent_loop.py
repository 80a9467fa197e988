"""What the framework itself costs a turn: 100 rollouts at once on one thread, with an engine that answers at once.

    python benchmarks/agent_loop.py

Each turn is a tool call by a scripted model, the call parsed, run (an async function on the tools' own loop thread),
and its answer rendered and appended; the last turn answers. Prints microseconds a turn, all in.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agentrl.chat.format import ChatFormat
from agentrl.config.run import RunConfig
from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.collector import collect
from agentrl.rollouts.runner import RolloutRunner
from agentrl.task import Task
from agentrl.tools.toolbox import Toolbox

sys.path.append(str(Path(__file__).parents[1] / "tests/chat"))
from chat_families import family_tokenizer  # noqa: E402  # a small tokenizer with a chat template

NUM_ROLLOUTS = 100
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "weather in Paris"}}\n</tool_call>'
