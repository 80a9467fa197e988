"""Python API for saved runs: read, rescore, compare, audit and publish."""
