"""SGLang server processes: command, options, log, start and stop."""
