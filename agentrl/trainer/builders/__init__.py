"""Builds the parts of a run from its configuration; only these modules name concrete classes."""
