"""The sandbox kind `local`."""

from agentrl.sandboxes.loading import SandboxKind
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox

LOCAL = SandboxKind(LocalSandbox, LocalProvider)
