"""Off-policy correction: importance weights, rejection, mismatch metrics."""
