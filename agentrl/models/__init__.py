"""Hugging Face models and tokenizers, loaded for whoever computes with them."""
