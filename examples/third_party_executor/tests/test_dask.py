"""The executor ``dask`` keeps what every executor keeps: the kit itself."""

from enginebay.testing import ExecutorSuite


class TestDask(ExecutorSuite):
    name = "dask"
    patience = 120.0
