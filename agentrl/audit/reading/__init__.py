"""Read the files of a run for the audit, with code that is independent of the writer."""
