"""Analysis of saved rollouts: audit, rescore, recompute advantages, compare, re-run."""
