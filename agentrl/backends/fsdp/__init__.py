"""The torch backend on one process per device: FSDP2 shards the model, and rank 0 calls functions on all ranks."""
