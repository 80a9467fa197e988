"""Output of a run for people: terminal, report, charts, evaluation tables, health warnings."""
