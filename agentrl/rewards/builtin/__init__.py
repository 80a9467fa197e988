"""Built-in rewards, chosen by `data_source`: math, code, question answering."""
