"""Lists the estimators and policy losses that verl registers; runs in verl's interpreter."""

from __future__ import annotations

import json

if __name__ == "__main__":
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    print(json.dumps([[*ADV_ESTIMATOR_REGISTRY], [*POLICY_LOSS_REGISTRY]]))
