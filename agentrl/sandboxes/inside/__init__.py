"""The program inside a sandbox: it runs code and commands, and reads and writes files.

It uses the standard library only, and reads no file of agentrl: the texts of these modules are executed in the sandbox,
in one namespace and in this order: `interpreter`, `actions`, then `server` or `single_request`. So they import each
other for type checks only.
"""
