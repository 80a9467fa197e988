"""verl's command line."""
