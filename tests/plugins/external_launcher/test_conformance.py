"""The executor ``external_launcher`` keeps what every executor keeps; it runs one rank, whatever the world's size."""

from enginebay.testing import ExecutorSuite


class TestExternalLauncher(ExecutorSuite):
    name = "external_launcher"
    world_sizes = (1,)
    patience = 30.0
