"""Sandboxes of E2B: virtual machines of E2B's service, or of your own E2B server."""
