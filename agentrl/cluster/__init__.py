"""Starts and watches the processes of a run: one per device on this node, and those on the nodes of a Ray cluster."""
