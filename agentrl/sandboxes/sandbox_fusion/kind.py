"""The sandbox kind `sandbox_fusion`."""

from agentrl.sandboxes.loading import SandboxKind
from agentrl.sandboxes.sandbox_fusion.sandbox import FusionProvider
from agentrl.sandboxes.sandbox_fusion.settings import FusionSandbox

SANDBOX_FUSION = SandboxKind(FusionSandbox, FusionProvider, keeps_state=False)
