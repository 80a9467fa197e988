"""The agent loop `harness`: a program, or a coroutine, that talks to the model through the gateway."""
