"""verl's configuration keys in agentrl's terms: one table, read by the command line and by docs/from-verl.md."""
