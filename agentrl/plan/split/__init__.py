"""Simulation of a run in virtual time, and the search for the best division of the devices."""
