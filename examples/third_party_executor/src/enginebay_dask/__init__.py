"""Executor ``dask``: Dask places the workers, and enginebay's own line carries their calls."""
