"""The torch backend on several processes, one per device: FSDP2 shards the model, rank 0 calls the others."""
