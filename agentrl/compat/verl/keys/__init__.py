"""Table that maps verl's configuration keys to agentrl's, used by the command line and docs/from-verl.md."""
