"""Search tools: an index of your own documents, or a retrieval service as in Search-R1 and verl."""
