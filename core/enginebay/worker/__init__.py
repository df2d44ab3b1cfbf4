"""The worker's half of the engine: what runs on each rank, whoever started it and wherever it runs.

``serve`` is the loop that an executor calls in the worker's process or thread; ``RequestTable`` keeps the state of
requests for any runner; ``HostDevice`` is a CPU device for runners without torch; ``ThreadExecutor`` is the base of
executors whose worker is a thread of the engine's process. None of them imports torch.
"""

from enginebay.worker.host import HostDevice, HostMemory
from enginebay.worker.serve import serve
from enginebay.worker.table import ContradictorySchedule, RequestTable, Row, ScheduledRow
from enginebay.worker.thread_executor import ThreadExecutor
from enginebay.worker.worker import Worker

__all__ = [
    "ContradictorySchedule",
    "HostDevice",
    "HostMemory",
    "RequestTable",
    "Row",
    "ScheduledRow",
    "ThreadExecutor",
    "Worker",
    "serve",
]
