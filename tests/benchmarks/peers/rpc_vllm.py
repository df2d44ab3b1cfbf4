"""vLLM's shared-memory MessageQueue: round trip of one broadcast and one reply, small and 64 KiB payloads.

Usage: ``python rpc_vllm.py [WORKERS]``, in the environment of vLLM. Prints one JSON line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

ROUNDS, WARM_UP = 3000, 500


def worker(handle: Any, rank: int, line: Any) -> None:
    """Reply to each message until None comes."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    calls = MessageQueue.create_from_handle(handle, rank)
    replies = MessageQueue(1, 1)
    line.send(replies.export_handle())
    calls.wait_until_ready()
    replies.wait_until_ready()
    while calls.dequeue() is not None:
        replies.enqueue((0, rank))


def main() -> None:
    """Measure."""
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    spawn = multiprocessing.get_context("spawn")
    calls = MessageQueue(workers, workers)
    handle = calls.export_handle()
    lines = []
    for rank in range(workers):
        line, other = spawn.Pipe()
        spawn.Process(target=worker, args=(handle, rank, other), daemon=True).start()
        lines.append(line)
    replies = [MessageQueue.create_from_handle(line.recv(), 0) for line in lines]
    calls.wait_until_ready()
    for reply in replies:
        reply.wait_until_ready()
    out: dict[str, object] = {"peer": "vllm MessageQueue", "workers": workers}
    for name, payload in (("small", {"step": 1, "ids": list(range(20))}), ("64KiB", os.urandom(65536))):
        times = []
        for number in range(ROUNDS):
            begin = time.perf_counter()
            calls.enqueue(("execute_model", (payload,), {}, None))
            for reply in replies:
                reply.dequeue()
            if number > WARM_UP:
                times.append(time.perf_counter() - begin)
        out[f"{name}_us_median"] = round(statistics.median(times) * 1e6, 1)
        out[f"{name}_us_p99"] = round(sorted(times)[int(len(times) * 0.99)] * 1e6, 1)
    calls.enqueue(None)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
