"""Backends: what trains. The policy, a reference policy and a critic are all backends."""
