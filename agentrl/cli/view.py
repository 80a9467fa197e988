"""`agentrl view`: show runs in the browser."""

from __future__ import annotations

import argparse


def view(options: argparse.Namespace) -> None:
    """Serve the page that shows the runs, until Ctrl-C.

    Raises:
        AgentRLError: the run or the tokenizer does not exist, or the port is in use.
    """
    from agentrl.viewer.runs import viewed_runs
    from agentrl.viewer.serve import serve

    places = [where for where in (options.run, options.other) if where is not None]
    runs = viewed_runs(places, options.tokenizer)
    serve(runs, options.port, options.open)
