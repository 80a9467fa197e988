"""The torch backend: trains a Hugging Face causal language model on one device."""
