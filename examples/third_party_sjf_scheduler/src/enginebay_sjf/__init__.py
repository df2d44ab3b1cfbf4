"""Shortest job first, with ageing: a scheduler for enginebay."""
