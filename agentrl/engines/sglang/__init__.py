"""SGLang as the engine: local or remote servers, used over HTTP."""
