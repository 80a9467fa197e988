"""Builds the components of a run from the configuration. Only the modules in this folder name their classes."""
