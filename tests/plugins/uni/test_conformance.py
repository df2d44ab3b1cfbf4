"""The executor ``uni`` keeps what every executor keeps: the kit itself."""

from enginebay.testing import ExecutorSuite


class TestUni(ExecutorSuite):
    name = "uni"
    world_sizes = (1,)
    patience = 30.0
