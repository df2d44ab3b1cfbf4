"""The other half of ``check --probe``: starts what the config describes, once, and reports what came of it.

Run by ``_probe`` as ``python -P -m enginebay.cli._probe_child`` with its request, JSON, on standard input. It reports
one JSON object a line on the descriptor that the request names: ``phase`` when one begins, then ``finished`` or
``error``. What it and its libraries print is no report.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec

from enginebay import errors
from enginebay.config import EngineConfig, Resolved
from enginebay.engine.startup.budget import block_budget, longest_request
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import EnginebayError
from enginebay.interfaces import Executor, ExecutorContext, ExecutorHealth, StartResult, StartSpec
from enginebay.messages import DeviceReady, Envelope, MemoryAvailable, ModelLoaded, Replies, Result
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from enginebay.transport import DamagedMessage, decode_call, decode_result

_PR_SET_PDEATHSIG: Final = 1

STOP: Final = "stop"
"""The phase in which everything is given back; also after a failure."""

T = TypeVar("T")


class Report:
    """The line to the parent, and how long each phase took, in seconds. ``reached``: the last phase but a stop's."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # else the report would not end before the last process that we start
        self._file = os.fdopen(fd, "w", encoding="utf-8")
        self._begun = time.monotonic()
        self._phase = ""
        self.reached = "start"
        self.seconds: dict[str, float] = {}

    def phase(self, name: str) -> None:
        """A phase begins, and the one before it has ended."""
        self.ended()
        self._phase, self._begun = name, time.monotonic()
        self.reached = self.reached if name == STOP else name
        self.say(phase=name)

    def ended(self) -> None:
        """The phase that runs, if one does, has ended."""
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + time.monotonic() - self._begun
            self._phase = ""

    def say(self, **fields: object) -> None:
        """One line; everything that was printed before it is on its way before it."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


class Observed(Executor[Any]):
    """Another executor, watched: which call begins, and what its ranks answer."""

    def __init__(self, inner: Executor[Any], context: ExecutorContext[Any], report: Report) -> None:
        super().__init__(context)
        self._inner = inner
        self._report = report
        self._answers: list[Future[Replies]] = []

    def start(self, spec: StartSpec) -> StartResult:
        self._report.phase("launch")
        return self._inner.start(spec)

    def submit(self, envelope: Envelope) -> Future[Replies]:
        self._report.phase(str(decode_call(envelope.payload).__struct_config__.tag))
        self._answers.append(self._inner.submit(envelope))
        return self._answers[-1]

    def health(self) -> ExecutorHealth:
        return self._inner.health()

    def exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        return self._inner.exchange(name, value, deadline)

    def stop(self, deadline: float) -> None:
        self._report.phase(STOP)
        self._inner.stop(deadline)
        self._report.ended()

    def answers(self, kind: type[T]) -> list[T]:
        """What the ranks answered to the call that is answered with ``kind``, in rank order."""
        every = [answer for replies in self._answers for answer in _results(replies)]
        return [answer for answer in every if isinstance(answer, kind)]


def _results(replies: Future[Replies]) -> list[Result]:
    """The answers that can be read; the engine has judged the others."""
    if not replies.done() or replies.exception() is not None:
        return []
    found = []
    for reply in replies.result().replies:
        try:
            found.append(decode_result(reply.payload))
        except DamagedMessage:
            continue
    return found


def probe(resolved: Resolved, report: Report) -> dict[str, Any]:
    """Bring the engine up and down; what its workers said on the way. Raises what the start raises."""
    from enginebay.engine import start

    report.phase("plan")
    host = PluginHost()
    planned = plan(resolved, host)
    observed: list[Observed] = []
    core = start(_watched(planned, report, observed), system_runtime(), host)
    try:
        told = _told(planned, core.in_force, observed[0])
    finally:
        report.reached = STOP
        core.stop()
    report.ended()
    return {**told, "seconds": report.seconds}


def _watched(planned: Plan, report: Report, observed: list[Observed]) -> Plan:
    """The same plan with an executor that is watched; it is put into ``observed`` when it is made.

    No sink is told of its workers: a probe changes nothing.
    """
    original = planned.executor.plugin

    def make(context: ExecutorContext[Any]) -> Executor[Any]:
        observed.append(Observed(original.factory(context), context, report))
        return observed[-1]

    plugin = dataclasses.replace(original, factory=make)
    return dataclasses.replace(planned, executor=dataclasses.replace(planned.executor, plugin=plugin), status_sinks=())


def _told(planned: Plan, in_force: dict[str, str], executor: Observed) -> dict[str, Any]:
    devices, models = executor.answers(DeviceReady), executor.answers(ModelLoaded)
    memory = executor.answers(MemoryAvailable)
    specs = [model.kv_cache_spec for model in models]
    # the engine's own arithmetic, with the same numbers
    budget = block_budget(
        planned.config.cache,
        specs,
        memory,
        reserved_blocks=planned.constraints.reserved_blocks,
        max_num_seqs=planned.limits.max_num_seqs,
        max_model_len=planned.max_model_len,
    )
    longest, note = longest_request(
        budget, block_size=planned.block_size, max_model_len=planned.max_model_len, explicit=False
    )
    before = {item.name: item.value for item in planned.in_force}
    answering = [place.rank for place in planned.world.own_places].index(planned.world.output_rank)
    ours = {"device", "kv_blocks", "longest request"}
    return {
        "in_force": {k: v for k, v in in_force.items() if k not in ours and before.get(k) != v}
        | {k: v for k, v in models[answering].in_force.items() if k not in ours},
        "runner": planned.runner.name_and_version,
        "kv_blocks": budget.num_blocks,
        "kv_blocks_why": budget.why,
        "longest_request": longest,
        "longest_request_why": note or "as max_model_len",
        "workers": [
            {
                "rank": place.rank,
                "device": device.worker.device,
                "total_bytes": device.snapshot.total,
                "free_bytes": device.snapshot.free,
                "weight_bytes": model.weight_bytes,
                "kv_cache_bytes": left.kv_cache_bytes,
                "kv_cache_groups": [msgspec.to_builtins(group) for group in spec.groups],
            }
            for place, device, model, left, spec in zip(
                planned.world.own_places, devices, models, memory, specs, strict=True
            )
        ],
    }


def _failure(error: BaseException) -> dict[str, Any]:
    """The error as data: the nearest class of ``enginebay.errors``, and the line that the command line prints of it."""
    notes = list(getattr(error, "__notes__", ()))
    for cls in type(error).__mro__:
        if cls.__module__ == errors.__name__ and cls.__name__ in errors.__all__:
            return {"kind": cls.__name__, "message": str(error), "notes": notes}
    message = str(error)
    if not isinstance(error, OSError):
        traceback.print_exception(error)
        message = (
            f"internal error: {type(error).__name__}: {error}. "
            "This is a fault of enginebay; please report it with the lines above."
        )
    return {"kind": EnginebayError.__name__, "message": message, "notes": notes}


def main() -> None:
    """See the module. Ends the process at once: what a library does at an orderly end is nobody's business here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it kills this process
    request = json.load(sys.stdin)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != request["parent"]:
            os._exit(1)
    report = Report(request["report"])
    config = EngineConfig.model_validate_json(request["config"])
    try:
        told = probe(Resolved(config=config, origins=request["origins"], file=request["file"]), report)
    except BaseException as error:
        report.say(error={"phase": report.reached, **_failure(error)})
    else:
        report.say(finished=told)
    os._exit(0)


if __name__ == "__main__":
    main()
