"""Memory of a device, by part: of a device that trains, and of a device of an engine."""
