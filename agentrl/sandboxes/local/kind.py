"""Local sandboxes, as a kind that a setting can name."""

from agentrl.sandboxes.loading import SandboxKind
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox

LOCAL = SandboxKind(LocalSandbox, LocalProvider)
