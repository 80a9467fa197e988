"""The Megatron backend: tensor, pipeline, context, expert and data parallelism."""
