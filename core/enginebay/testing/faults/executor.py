"""An executor around another one, whose calls, answers and workers meet faults."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from typing import Any

from msgspec import msgpack

from enginebay.errors import in_words
from enginebay.interfaces import Executor, ExecutorHealth, StartResult, StartSpec
from enginebay.messages import CallExtension, Envelope, Replies
from enginebay.testing.faults.in_worker import Order
from enginebay.testing.faults.injector import Injector
from enginebay.testing.faults.options import IN_WORKER, NAME, ON_ANSWERS, Fault, FaultKind, FaultOptions
from enginebay.transport import DamagedMessage, decode_call

__all__ = ["FaultyExecutor"]


class FaultyExecutor(Executor[Any]):
    """As the inner one in everything, but for the faults of ``options`` that are for its replica."""

    def __init__(self, inner: Executor[Any], options: FaultOptions) -> None:
        super().__init__(inner.context)
        self._inner = inner
        self._injector = Injector(options, inner.context.runtime)
        self._ranks: tuple[int, ...] = ()
        weakref.finalize(self, self._injector.rest)

    def start(self, spec: StartSpec) -> StartResult:
        self._ranks = tuple(place.rank for place in spec.world.own_places)
        self._injector.begin(spec.world.data_parallel_index, self._ranks)
        started = self._inner.start(spec)
        self._injector.stand(started.workers)
        return started

    def submit(self, envelope: Envelope) -> Future[Replies]:
        call = _name(envelope)
        due = self._injector.due_with(call, self._ranks if envelope.ranks is None else envelope.ranks)
        for fault in due:
            if fault.kind in IN_WORKER:
                self._order(fault, envelope)
        future = self._inner.submit(envelope)
        for fault in due:
            if fault.kind in ON_ANSWERS:
                future = self._injector.bend(fault, future, call)
            elif fault.kind not in IN_WORKER:
                self._injector.harm(fault)
        return future

    def health(self) -> ExecutorHealth:
        return self._inner.health()

    def exchange(self, name: str, value: bytes, deadline: float) -> tuple[bytes, ...]:
        return self._inner.exchange(name, value, deadline)

    def stacks(self, deadline: float) -> dict[int, str]:
        return self._inner.stacks(deadline)

    def stop(self, deadline: float) -> None:
        try:
            self._inner.stop(deadline)
        finally:
            self._injector.rest()

    def _order(self, fault: Fault, envelope: Envelope) -> None:
        """Have the worker do it, before it takes the call; its answer is waited for by nobody."""
        order = msgpack.encode(Order(seconds=fault.seconds, bytes=fault.bytes))
        call = CallExtension(method=f"{NAME}.{fault.kind.value}", payload=order)
        sent = self._inner.submit_call(call, deadline=envelope.deadline, ranks=(fault.rank,))
        injector, unwrap = self._injector, self.context.unwrap

        def answered(future: Future[Replies]) -> None:
            try:
                unwrap(future.result())
            except Exception as error:
                injector.say(fault, f"the worker did not take it: {in_words(error)}")
            else:
                injector.tell(fault, f"{fault.seconds:g} s each step" if fault.kind is FaultKind.SLOW else "")

        sent.future.add_done_callback(answered)


def _name(envelope: Envelope) -> str:
    """``execute_model``; "" for bytes that are no call, which the worker answers for."""
    try:
        return str(decode_call(envelope.payload).__struct_config__.tag)
    except DamagedMessage:
        return ""
