"""Sandboxes of E2B: virtual machines of a service, or of a server of your own."""
