"""fcfs keeps what the conformance suite asks of every scheduler."""

from enginebay.testing import SchedulerSuite


class TestFcfs(SchedulerSuite):
    name = "fcfs"
