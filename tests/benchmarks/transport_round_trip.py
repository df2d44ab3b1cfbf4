"""Round trips over the shared rings: one broadcast, and one reply of each worker; prints one JSON line.

Usage: python transport_round_trip.py [workers]. The engine's half is what an executor does: encode the envelope, send,
look for a moment, wait by poll, take the replies, decode them; the worker's half is what ``serve`` does around a call.
"""

from __future__ import annotations

import gc
import json
import os
import select
import statistics
import subprocess
import sys
import time

import msgspec

from enginebay.messages import Envelope
from enginebay.transport import decode_reply, encode_envelope_head, open_envelope
from enginebay.transport.shared import EngineEnd, WorkerEnd

ROUNDS, WARM = 3000, 500
PAYLOADS = {"small": msgspec.msgpack.encode({"step": 1, "ids": list(range(20))}), "64KiB": os.urandom(65536)}


def worker(ticket: bytes) -> None:
    end = WorkerEnd.attach(ticket)
    gc.freeze()
    print("ready", flush=True)
    while (frame := end.receive(None)) is not None:
        head, _ = open_envelope(frame)
        end.reply(head.generation, head.call_id, b"\x81\xa4type\xa3ack")
    end.close()


def idle_cpu(pids: list[int], seconds: float) -> float:
    """The busiest one's share of a core over so long a time."""

    def used(pid: int) -> int:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[0])

    before = [used(pid) for pid in pids]
    time.sleep(seconds)
    return max(used(pid) - then for pid, then in zip(pids, before, strict=True)) / 1e9 / seconds


def main(workers: int, idle_seconds: float) -> None:
    end = EngineEnd.create(range(workers))
    processes = []
    for rank in range(workers):
        ticket, fds = end.ticket(rank)
        argv = [sys.executable, "-P", __file__, "--worker", ticket.hex()]
        processes.append(subprocess.Popen(argv, pass_fds=fds, stdout=subprocess.PIPE))
    for process in processes:  # as an executor does, and the peer; else the first calls wait for Python to start
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    poll = select.poll()
    poll.register(end.fileno_of_replies(), select.POLLIN)

    def awaited() -> list[tuple[int, bytes]]:
        poll.poll()
        return end.take_replies()

    out: dict[str, object] = {"workers": workers}
    gc.freeze()
    call_id = 0
    for name, payload in PAYLOADS.items():
        times = []
        for turn in range(ROUNDS):
            begun = time.perf_counter()
            call_id += 1
            envelope = Envelope(generation=1, call_id=call_id, payload=payload)
            end.send(payload, None, begun + 60, head=encode_envelope_head(envelope))
            replies: list[tuple[int, bytes]] = []
            while len(replies) < workers:
                replies += end.look() or awaited()
            assert all(decode_reply(frame)[1] == call_id for _, frame in replies)
            if turn >= WARM:
                times.append(time.perf_counter() - begun)
        times.sort()
        out[f"{name}_us_median"] = round(statistics.median(times) * 1e6, 1)
        out[f"{name}_us_p99"] = round(times[int(len(times) * 0.99)] * 1e6, 1)
    if idle_seconds:
        out["idle_share_of_a_core"] = idle_cpu([process.pid for process in processes], idle_seconds)
    end.close()
    for process in processes:
        process.communicate(timeout=60)
    print(json.dumps(out))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(bytes.fromhex(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
