"""Whose beginning is in the KV cache goes first: a scheduler for enginebay."""
