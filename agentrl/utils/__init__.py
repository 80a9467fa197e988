"""Small helper functions."""
