"""The torch backend on several processes, one per device: FSDP2 shards the model, and rank 0 calls the other ranks."""
