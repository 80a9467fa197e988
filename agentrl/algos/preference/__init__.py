"""Preference pairs and their losses."""
