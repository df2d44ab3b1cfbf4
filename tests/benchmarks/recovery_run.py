"""Kills a worker of an engine under load, again and again; prints one JSON line for each kill (see ``test_recovery``).

Detection is from just before the signal is sent to the begin of the engine's recovery. This and what follows are times
that the engine tells by itself: the spans of its trace, and the stage ``Starting`` of the new worker's status, which is
from the spawn to HELLO. What imports took behind HELLO is taken out of the parts of the start, and is one of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay import LLM, EnginebayError, SamplingParams, tracing
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.messages import Phase, WorkerStatus
from enginebay.telemetry import SpanRecord, read_spans
from support.declared import declare
from support.repository import ROOT

STREAMS, PROMPT, TOKENS, VOCABULARY = 8, 64, 160, 40_000
"""Requests at a time, tokens of a prompt and of an answer, and token ids that prompts are drawn from."""
LOOK, PATIENCE = 0.01, 120.0
"""Seconds between looks, and for anything at the most."""
PARTS = {
    "device": (tracing.WORKER_INIT_DEVICE,),
    "weights": (tracing.WORKER_LOAD_MODEL,),
    "warm_up": (tracing.WORKER_PROFILE, tracing.WORKER_ALLOCATE_KV_CACHE, tracing.WORKER_WARM_UP),
}
"""The parts of a start behind HELLO, by the worker's spans."""


@dataclass(kw_only=True)
class Heard:
    """One request: its id, when it was asked, and when each of its deltas came, in wall seconds; its error."""

    name: str
    asked: float
    deltas: list[float] = field(default_factory=list)
    error: str = ""

    def longest_wait(self, begin: float, end: float) -> float:
        """The longest time without anything of it, of those that overlap with these times."""
        moments = [self.asked, *self.deltas]
        return max((b - a for a, b in itertools.pairwise(moments) if b > begin and a < end), default=0.0)


class Load:
    """So many requests at any time, until it is stopped."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._over = False
        self._draw = random.Random(0)
        self._lock = threading.Lock()
        self.heard: list[Heard] = []
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(STREAMS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for those that run."""
        self._over = True
        for thread in self._threads:
            thread.join()

    def running(self) -> list[Heard]:
        """Those that have not ended."""
        with self._lock:
            return [one for one in self.heard[-STREAMS:] if len(one.deltas) < TOKENS and not one.error]

    def all_go_on(self, since: float) -> bool:
        """Whether each that was asked before has got a token since, and some are there."""
        running = self.running()
        return bool(running) and all(one.deltas and one.deltas[-1] > since for one in running)

    def _ask_on(self) -> None:
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        while not self._over:
            with self._lock:
                prompt = [self._draw.randrange(VOCABULARY) for _ in range(PROMPT)]
                heard = Heard(name=f"bench-{len(self.heard)}", asked=time.time())
                self.heard.append(heard)
            try:
                for delta in self._llm.stream(prompt, params, request_id=heard.name):
                    if delta.token_ids:
                        heard.deltas.append(time.time())
                    if delta.finish_reason == "error":
                        heard.error = delta.error or "error"
            except EnginebayError as error:
                heard.error = f"{type(error).__name__}: {error}"


def wait_until(what: str, done: Callable[[], bool], load: Load) -> None:
    """Look now and then; a request that fails meanwhile is the end."""
    until = time.time() + PATIENCE
    while not done():
        if errors := [one.error for one in load.heard if one.error]:
            raise RuntimeError(f"{len(errors)} requests failed, the first one: {errors[0]}")
        if time.time() > until:
            raise TimeoutError(f"not after {PATIENCE:g} s: {what}")
        time.sleep(LOOK)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill, when all go on again: what of it cannot be found in the trace, in wall seconds.

    ``ended``: when the kernel had told us, as it does the engine, that the process had ended. ``lost`` and ``others``
    are the ids of the requests of the group whose worker it was, and of those of another.
    """

    at: float
    ended: float
    over: float
    memory: dict[str, int]
    worker: WorkerStatus
    imports: list[tuple[float, float]]
    lost: frozenset[str]
    others: frozenset[str]


def kill(llm: LLM, load: Load) -> Kill:
    """Kill the first group's worker, whose cache has been written to, and wait until all requests go on."""
    cache_bytes = json.loads(llm.collective_rpc("recovery_probe.touch")[0])
    begun = time.time()
    wait_until("each request gets a token", lambda: load.all_go_on(begun), load)
    wait_until("the group has its share again", lambda: _share(llm, load) >= STREAMS // 4, load)
    time.sleep(random.uniform(0.0, 0.3))
    worker = _worker(llm)
    assert worker is not None, "it gives tokens"
    victim = worker.incarnation
    memory = {"cache": cache_bytes, **_memory(victim.pid)}
    descriptor = os.pidfd_open(victim.pid)
    groups = {one.name: _group_of(llm, one.name) for one in load.running()}
    killed = time.time()
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    select.select([descriptor], [], [], PATIENCE)
    ended = time.time()
    os.close(descriptor)
    wait_until("another worker is ready", lambda: _is_another(_worker(llm), victim.id), load)
    again = time.time()
    wait_until("each request goes on", lambda: load.all_go_on(again), load)
    over, worker = time.time(), _worker(llm)
    assert worker is not None, "it gives tokens"
    imports = json.loads(llm.collective_rpc("recovery_probe.imports")[0])
    lost = frozenset(name for name, group in groups.items() if group == 0)
    others = frozenset(name for name, group in groups.items() if group not in (0, None))
    return Kill(
        at=killed, ended=ended, over=over, memory=memory, worker=worker, imports=imports, lost=lost, others=others
    )


def _share(llm: LLM, load: Load) -> int:
    return sum(_group_of(llm, one.name) == 0 for one in load.running())


def _group_of(llm: LLM, request_id: str) -> int | None:
    port = llm._front.client
    assert isinstance(port, ReplicaSet), "the engine is of this process"
    return port._places.group_of(request_id)


def tell(kill: Kill, spans: list[SpanRecord], heard: list[Heard]) -> dict[str, Any]:
    """The parts of a recovery in seconds, and the waits of requests (``_waits``)."""
    of_it = [one for one in spans if kill.at < one.start_ns / 1e9 < kill.over]

    def the(name: str) -> SpanRecord:
        (found,) = [one for one in of_it if one.name == name]
        return found

    detected, requeued = the(tracing.ENGINE_RECOVER).start_ns / 1e9, the(tracing.REQUEST_REQUEUE).end_ns / 1e9
    starting = next(one for one in kill.worker.stages if one.phase is Phase.STARTING)
    assert starting.ended is not None, "the worker is ready"
    told = {
        "detection": detected - kill.at,
        "reclaim": _seconds([the(tracing.WORKER_RECLAIM)]),
        "hello": starting.ended - starting.begun,
        "requeue": _seconds([the(tracing.REQUEST_REQUEUE)]),
    }
    asked_for = sum(told.values())
    told["imports"] = sum(b - a for a, b in kill.imports if a > starting.ended)
    for name, names in PARTS.items():
        parts = [one for one in of_it if one.name in names]
        told[name] = _seconds(parts) - sum(_inside(one, kill.imports) for one in parts)
    told["other"] = requeued - kill.at - sum(told.values())
    first = min(one for each in heard for one in each.deltas if one > requeued)
    told |= {
        "ended": kill.ended - kill.at,
        "sum": asked_for,
        "whole": requeued - kill.at,
        "first_token": first - kill.at,
    }
    moved = the(tracing.ENGINE_RECOVER).attributes.get(tracing.MOVED, 0)
    return {**told, **_waits(heard, kill), "memory": kill.memory, "moved": moved}


def _seconds(spans: list[SpanRecord]) -> float:
    return sum(one.duration_ms for one in spans) / 1e3


def _inside(span: SpanRecord, imports: list[tuple[float, float]]) -> float:
    begin, end = span.start_ns / 1e9, span.end_ns / 1e9
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in imports)


def _is_another(worker: WorkerStatus | None, than: str) -> bool:
    return worker is not None and worker.incarnation.id != than and worker.phase is Phase.READY


def _worker(llm: LLM) -> WorkerStatus | None:
    """The first group's; None: one is gone, and the next not there yet."""
    return next((one for one in llm.health().workers if one.slot.group == 0), None)


def _memory(pid: int) -> dict[str, int]:
    """Bytes that a process holds: all, of its own and not of a file, and of that in huge pages."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    return {"resident": fields["Rss"], "anonymous": fields["Anonymous"], "huge": fields["AnonHugePages"]}


def _waits(heard: list[Heard], kill: Kill) -> dict[str, list[float]]:
    """The longest time that each request stood still between the kill and the next worker's first steps: of those whose
    group was lost, and those of another. A request that comes meanwhile is of another."""
    lost = [one.longest_wait(kill.at, kill.over) for one in heard if one.name in kill.lost]
    others = [
        one.longest_wait(kill.at, kill.over)
        for one in heard
        if one.name in kill.others or (kill.others and kill.at < one.asked < kill.over and one.deltas)
    ]
    return {"waited": lost, "went_on": others}


def config(model: str, replicas: int, cache_bytes: int, trace: Path) -> dict[str, Any]:
    """Restarts are not held back: many come in a short time."""
    many = 1_000_000
    return {
        "model": {"path": model},
        "executor": {"use": "mp"},
        "parallel": {"data_parallel_size": replicas},
        "cache": {"memory_bytes": cache_bytes},
        "worker": {"extensions": ["recovery_probe"]},
        "runner": {"options": {"compile": "wait"}},
        "telemetry": {"file": str(trace)},
        "recovery": {"max_restarts": many, "max_restarts_in_all": many, "longest_wait": 0},
    }


def main() -> None:
    """See the module."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True, help="folder of the model")
    ap.add_argument("--kills", type=int, required=True)
    ap.add_argument("--replicas", type=int, default=1)
    ap.add_argument("--cache-bytes", type=int, default=2 << 30)
    args = ap.parse_args()
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory() as folder:
        own = {"enginebay.worker_extensions": {"recovery_probe": "recovery_probe"}}
        path = [str(declare(Path(folder) / "site", own)), str(Path(__file__).parent), str(ROOT / "tests")]
        sys.path[:0] = path
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
        trace = Path(folder) / "trace.jsonl"
        with LLM(config=config(args.model, args.replicas, args.cache_bytes, trace)) as llm:
            load = Load(llm)
            try:
                for number in range(args.kills):
                    kills.append(kill(llm, load))
                    print(f"kill {number + 1} of {args.kills}", file=sys.stderr, flush=True)
            finally:
                load.stop()
        spans = read_spans(trace)
    for one in kills:
        print(json.dumps(tell(one, spans, load.heard)))
    errors = [heard.error for heard in load.heard if heard.error]
    print(json.dumps({"requests": len(load.heard), "errors": errors}))


if __name__ == "__main__":
    main()
