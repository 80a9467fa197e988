"""Output of a replay: tables, JSON, HTML."""
