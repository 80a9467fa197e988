"""A run on disk: its folder, checkpoints and resuming (docs/design.md, section 6)."""
