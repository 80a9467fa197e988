"""The embedded torch engine: continuous batching with a paged KV cache."""
