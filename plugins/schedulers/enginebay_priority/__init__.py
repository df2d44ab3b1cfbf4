"""Urgent requests first: a scheduler that also preempts less urgent ones for them."""
