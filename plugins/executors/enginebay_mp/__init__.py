"""Executor ``mp``: one process for each worker on this machine, spoken to through shared memory."""
