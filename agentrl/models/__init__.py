"""Load Hugging Face models and tokenizers, for engines and backends."""
