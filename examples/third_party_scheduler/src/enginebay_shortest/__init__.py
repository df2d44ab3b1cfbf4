"""Shortest prompt first, with ageing: a scheduler for enginebay."""
