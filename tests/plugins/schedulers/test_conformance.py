"""The built-in schedulers keep what the conformance suite asks of every scheduler."""

from __future__ import annotations

from typing import ClassVar

import pytest

from enginebay.testing import SchedulerSuite


class TestFcfs(SchedulerSuite):
    name = "fcfs"
    seeds = 5


class TestPriority(SchedulerSuite):
    name = "priority"
    seeds = 5


class TestFair(SchedulerSuite):
    name = "fair"
    options: ClassVar = {"weights": {"a": 3.0}}
    seeds = 5


@pytest.mark.soak
class TestFcfsLong(TestFcfs):
    seeds = 200


@pytest.mark.soak
class TestPriorityLong(TestPriority):
    seeds = 200


@pytest.mark.soak
class TestFairLong(TestFair):
    seeds = 200
