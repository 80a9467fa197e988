"""Saved rollouts again, without a GPU: parsed, masked, scored, credited and compared."""
