"""Backends: score samples and train. The policy, a reference policy and a critic each have a backend."""
