"""Weights and optimizer state of Megatron models, as parts of Hugging Face weights."""
