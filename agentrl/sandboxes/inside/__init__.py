"""The program inside a sandbox: it runs code and commands, and reads and writes files.

The program uses only the standard library and reads no file of agentrl. Instead, the source texts of these modules are
executed in the sandbox, in one namespace and in this order: `interpreter`, `actions`, then `server` or
`single_request`. So the modules import each other for type checks only.
"""
