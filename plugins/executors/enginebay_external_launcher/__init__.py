"""Executor ``external_launcher``: one engine per rank, in the processes that torchrun or another has started."""
