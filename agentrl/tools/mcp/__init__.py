"""Tools of MCP servers: reading their configuration, listing their tools, and calling them."""
