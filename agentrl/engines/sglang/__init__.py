"""SGLang as the engine: servers on this machine or elsewhere, spoken to over HTTP."""
