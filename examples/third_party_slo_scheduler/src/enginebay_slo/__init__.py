"""Whoever is due first goes first: a scheduler for enginebay."""
