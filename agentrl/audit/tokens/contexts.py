"""Choose the token check of a rollout: it depends on `rollout.multi_turn.thinking` and on the template variables."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from agentrl.audit.checks import Checker
from agentrl.audit.conversation import AuditedRollout
from agentrl.audit.reading.run_info import RunInfo
from agentrl.audit.template import TemplateOracle
from agentrl.audit.tokens.rendered import TokenCheck
from agentrl.audit.tokens.served import ServedTokenCheck

_MAX_CHECKS = 64


@dataclass(slots=True)
class Contexts:
    """Token checks of a step, one for each set of template variables."""

    check: Checker
    oracle: TemplateOracle
    templated: bool
    known: RunInfo
    _checks: dict[str, TokenCheck | ServedTokenCheck] = field(default_factory=dict)

    def of(self, rollout: AuditedRollout) -> TokenCheck | ServedTokenCheck:
        """Return the check for a rollout."""
        variables = rollout.options.variables
        key = json.dumps(variables, sort_keys=True)
        if key not in self._checks:
            if len(self._checks) >= _MAX_CHECKS:
                self._checks.clear()
            tokens = TokenCheck(self.check, self.oracle.with_variables(variables), self.templated)
            strips = self.known.get("rollout.multi_turn.thinking") == "strip"
            self._checks[key] = ServedTokenCheck(tokens) if strips else tokens
        return self._checks[key]
