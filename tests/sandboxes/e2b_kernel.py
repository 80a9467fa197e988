"""The program of an interpreter of the E2B test server: runs code and reports events, as a Jupyter kernel does.

One line of JSON with `id` and `code` per request on standard input; events as lines of JSON on the descriptor that is
given.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import time
import traceback


class Stream:
    encoding = "utf-8"

    def __init__(self, send, kind):
        self.send, self.kind = send, kind

    def write(self, text):
        self.send(type=self.kind, text=text, timestamp=time.time_ns())
        return len(text)

    def flush(self):
        pass


def run(code, scope, send):
    """Run code; report the value of a last expression, as IPython does."""
    tree = ast.parse(code, "<cell>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), scope)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
        if value is not None:
            text = repr(value)
            if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":  # so does the server of E2B
                text = text[1:-1]
            send(type="result", text=text, is_main_result=True, extra={})


def main(descriptor):
    number = None

    def send(**event):
        data = json.dumps({"of": number, **event}).encode() + b"\n"
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # an interrupt would leave a part of the line
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    sys.stdout, sys.stderr = Stream(send, "stdout"), Stream(send, "stderr")
    scope, count, running = {"__name__": "__main__"}, 0, False

    def interrupt(*_):
        if running:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    for line in sys.stdin:
        request, count = json.loads(line), count + 1
        number = request["id"]
        send(type="number_of_executions", execution_count=count)
        try:
            running = True
            run(request["code"], scope, send)
        except BaseException as error:
            running = False
            shown = "".join(traceback.format_exception(error.__class__, error, error.__traceback__, limit=-5))
            color = f"\x1b[0;31m{shown}\x1b[0m"
            send(type="error", name=type(error).__name__, value=str(error), traceback=color)
        running = False
        send(type="idle")


if __name__ == "__main__":
    main(int(sys.argv[1]))
