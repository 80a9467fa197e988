"""Agent loops that are programs of their own, behind the gateway."""
