"""`agentrl view`: one run or two, in the browser."""

from __future__ import annotations

import argparse


def view(options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        AgentRLError: no such run or tokenizer, or the port is not free.
    """
    from agentrl.viewer.runs import ViewedRun
    from agentrl.viewer.serve import serve

    runs = [ViewedRun(where, options.tokenizer) for where in (options.run, options.other) if where is not None]
    serve(runs, options.port, options.open)
