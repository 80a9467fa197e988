"""Search tools: an index of your documents, and retrieval services as in Search-R1 and verl."""
