"""Starts and watches the processes of a run: processes on this node (one per device), or on a Ray cluster."""
