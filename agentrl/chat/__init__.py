"""Between messages and tokens: chat templates continued turn by turn, and parsers of what a model wrote."""
