"""Builds the components of a run from the configuration. Only modules in this folder refer to concrete classes."""
