"""Rollouts that other frameworks logged, as rollouts of a store: with messages and rewards, without tokens."""
