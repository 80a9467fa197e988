"""How the parts of a Megatron model are built from a Hugging Face configuration."""
