"""The last log lines of a dead server become one error line."""

from __future__ import annotations

import pytest

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.servers import log as server_log
from agentrl.engines.sglang.servers.log import startup_error
from agentrl.errors import ConfigError

TRACEBACK = """\
[2026-11-21 11:30:01] server_args=ServerArgs(model_path='m')
[2026-11-21 11:30:19] Scheduler hit an exception: Traceback (most recent call last):
  File "weight_utils.py", line 1254, in _load_file
    raise ValueError("a line of code, not an error")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB

[2026-11-21 11:30:19] Received sigquit from a child process. It usually means the child failed.
"""


def why(tmp_path, text: str, start: int = 0) -> str:
    log = tmp_path / "replica-0.log"
    log.write_text(text)
    error = startup_error("http://here", 137, log, start)
    assert isinstance(error, ServerError)
    assert "\n" not in str(error)
    return str(error)


def test_the_exception_that_was_raised_last_is_the_reason(tmp_path):
    expected = "the SGLang server http://here ended with status 137: torch.OutOfMemoryError: CUDA out of memory."
    assert why(tmp_path, TRACEBACK).startswith(expected)
    assert why(tmp_path, TRACEBACK).endswith(f"its output: {tmp_path / 'replica-0.log'}")


def test_reason_without_exception_is_the_last_log_line(tmp_path):
    assert "status 137: Killed; its" in why(tmp_path, "loading\nKilled\n\n")
    assert "it wrote nothing" in why(tmp_path, "")


def test_log_of_an_earlier_start_is_ignored(tmp_path):
    assert "status 137: second; its" in why(tmp_path, TRACEBACK + "second\n", len(TRACEBACK))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "sglang serve: error: unrecognized arguments: --tp-sise 2",
            "rollout.sglang.server_args: sglang has no option 'tp_sise'; did you mean 'tp_size'?",
        ),
        (
            "sglang serve: error: argument --dtype: invalid choice: 'x' (choose from 'half')",
            "rollout.sglang.server_args: argument --dtype: invalid choice: 'x' (choose from 'half')",
        ),
    ],
)
def test_unknown_argument_is_a_user_error(tmp_path, monkeypatch, line, message):
    monkeypatch.setattr(server_log, "known_options", lambda: ["tp_size", "dtype"])
    (tmp_path / "log").write_text(f"usage: sglang serve [-h]\n{line}\n")
    error = startup_error("http://here", 2, tmp_path / "log", 0)
    assert isinstance(error, ConfigError)
    assert str(error) == message
