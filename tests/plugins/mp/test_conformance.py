"""The executor ``mp`` keeps what every executor keeps: the kit itself."""

from enginebay.testing import ExecutorSuite


class TestMp(ExecutorSuite):
    name = "mp"
    patience = 60.0
    tells_last_lines = True
