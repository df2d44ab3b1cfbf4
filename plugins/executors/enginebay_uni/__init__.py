"""Executor ``uni``: one worker in a thread of the engine's own process."""
