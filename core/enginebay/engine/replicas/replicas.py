"""Several copies of the model behind one front end: one core and loop for each, and a router before them.

Decision: a loop for each group. The design lets one core wait on the futures of all groups; a thread for each group
does the same with less. A group that hangs, loads or is being respawned holds up no other, since nothing is shared but
the router's numbers; a group's death is its own, and the core stays the one that a single group has, with its one
step, one ledger and one scheduler. The threads wait nearly always (on a worker's answer, which releases the GIL).
A violating change: a core with two executors, a ledger that two loops write, a step that waits for two groups.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from enginebay.engine.admission.admit import AdmissionLimits, Ask, check_id
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import stats_of
from enginebay.engine.control.tensors import Command
from enginebay.engine.core import EngineCore
from enginebay.engine.loop import Sink
from enginebay.engine.parts import EngineStats
from enginebay.engine.replicas.gathering import SummedStats, end_of_all, merged
from enginebay.engine.replicas.moves import Moves
from enginebay.engine.replicas.placement import Place, Placement
from enginebay.engine.replicas.routing import Router
from enginebay.engine.replicas.sending import sender
from enginebay.engine.replicas.unison import Unison
from enginebay.engine.spans import TEXT_COMPLETION
from enginebay.errors import EnginebayError, EngineDead, RequestError
from enginebay.messages import ControlDone, ReadStatus, SamplingParams

__all__ = ["ReplicaSet"]


class ReplicaSet:
    """An ``EnginePort`` over the groups of this process: the death of one is no other's.

    A request is of one group at a time, with all its choices; of one without workers it goes to another, as ``Moves``
    does it. When the last group has died, the engine has. Thread-safe.
    """

    def __init__(
        self,
        cores: Sequence[EngineCore],
        *,
        block_size: int = 0,
        slack: int = 0,
        stop_timeout: float,
        step_timeout: float = 300.0,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Assigns. ``block_size`` and ``slack`` (tokens) are the router's.

        The timeouts are seconds; ``on_end`` is called in an engine's thread when the last group has ended.
        """
        self._stop_timeout, self._step_timeout = stop_timeout, step_timeout
        self._on_end = on_end
        self._runtime = cores[0].runtime
        self._lock = threading.RLock()  # of what follows; a dropped stream may abort from within any allocation
        self._num_ended = 0
        self._unison = Unison()
        self._stop_deadline: float | None = None
        self._cores, self._clients = tuple(cores), tuple(self._client(core) for core in cores)
        longest = self._strictest().limits.max_model_len
        self._places = Placement(Router(len(cores), prefix=block_size, slack=slack, max_model_len=longest))
        self._moves = Moves(self._places, lambda: (self._cores, self._clients))
        self._moves.join(*range(len(cores)))

    def start(self) -> None:
        """Start every group's loop. They own the cores from here on, also when a start fails."""
        atexit.register(self.stop)  # before the clients' own, which are asked first and get one deadline for all
        started = 0
        try:
            for client in self._clients:
                started += 1
                client.start()
        except BaseException:
            for client in self._clients[:started]:
                client.stop()
            for core in self._cores[started:]:
                core.stop()
            atexit.unregister(self.stop)
            raise

    def add(self, core: EngineCore) -> int:
        """Put one more group, which holds the same model, behind the router, and start its loop; its number."""
        client = self._client(core)
        client.start()
        with self._lock:
            if (stopping := self._stop_deadline) is None:
                self._cores = (*self._cores, core)  # first: whoever sees a client may look at its core
                self._clients = (*self._clients, client)
                self._moves.join(len(self._cores) - 1)
                return self._places.add_group()
        client.begin_stop(stopping)
        client.stop()
        raise EngineDead("the engine is closed; make a new one")

    def grow(self, another: Callable[[int, EngineCore], EngineCore]) -> int:
        """Start one more group by ``another(number, a core whose weights it may have)``; its number."""
        self.check_alive()
        living = [core for core, load in zip(self._cores, self.loads, strict=True) if load is not None]
        if not living:
            raise self._end()
        with self._unison.growing():
            core = another(len(self._cores), living[0])
            core.drain(living[0].life.draining)
            return self.add(core)

    @property
    def loads(self) -> tuple[int | None, ...]:
        """How many tokens each group may still have to do; None: it is lost."""
        self._look()
        return self._places.loads()

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child: the engine's threads and workers are its parent's."""
        return self._clients[0].is_of_this_process

    @property
    def now(self) -> float:
        """Seconds of the engine's clock."""
        return self._runtime.clock.now()

    def check_alive(self) -> None:
        """Raise the engine's end when no group is there to answer, or ``PluginBroken`` in a group's own thread."""
        for client in self._clients:
            client.check_apart()
        self._check_there()

    def _check_there(self) -> None:
        errors: list[EnginebayError] = []
        for client in self._clients:
            try:
                client.check_there()
            except EnginebayError as error:
                errors.append(error)
            else:
                return
        raise end_of_all(errors)

    @property
    def limits(self) -> AdmissionLimits:
        """What a request must keep to fit into whichever group takes it."""
        return self._strictest().limits

    def validate(self, ask: Ask) -> Ask:
        """The request in plain values, or what is wrong with it; it fits into whichever group takes it."""
        return self._strictest().validate(ask)

    def check_size(self, texts: Iterable[str], params: SamplingParams | None) -> None:
        """Raise ``RequestTooLong`` for text that is not worth tokenizing."""
        self._strictest().check_size(texts, params)

    def add_request(self, ask: Ask, sink: Sink, *, operation: str = TEXT_COMPLETION, validated: bool = False) -> None:
        """Send a request to the group that takes it. Raises what is wrong with it, or the engine's end."""
        self.add_requests([(ask, sink)], operation=operation, validated=validated)

    def add_requests(
        self, asks: Sequence[tuple[Ask, Sink]], *, operation: str = TEXT_COMPLETION, validated: bool = False
    ) -> None:
        """Send several as one: each to its group, and those of a group as one. All are taken, or none is."""
        if not validated:
            asks = [(self.validate(ask), sink) for ask, sink in asks]
        self.check_alive()
        self._unison.check()
        while asks:
            asks = self._send(asks, operation)

    def _send(self, asks: Sequence[tuple[Ask, Sink]], operation: str) -> list[tuple[Ask, Sink]]:
        """Send each to its group; returns those whose group had ended by then, to be sent elsewhere."""
        again: list[tuple[Ask, Sink]] = []
        self._look()
        placed = [
            (place, ask, sink)
            for place, (ask, sink) in zip(self._places.place([ask for ask, _ in asks], self._end), asks, strict=True)
        ]
        try:
            for group in dict.fromkeys(place.group for place, _, _ in placed):
                these = [one for one in placed if one[0].group == group]
                client = self._clients[group]
                try:
                    client.add_requests([(ask, sink) for _, ask, sink in these], operation=operation, validated=True)
                except EnginebayError as error:
                    if isinstance(error, RequestError) or client.is_alive():
                        raise
                    self._take_back(these)
                    again += [(ask, sink) for _, ask, sink in these]
        except BaseException:
            self._take_back(placed)
            raise
        return again

    def _take_back(self, placed: Sequence[tuple[Place, Ask, Sink]]) -> None:
        """Abort what was sent, whose end then frees the id, and free the ids of what was not."""
        for place, ask, sink in placed:
            self.abort_quietly(ask.request_id, sink)
            if not self._clients[place.group].is_live(ask.request_id):
                self._places.free(ask.request_id, place)

    def abort(self, request_id: str) -> None:
        """End a request of this client. Raises ``UnknownRequest`` for an id that no unfinished request has."""
        check_id(request_id)
        self._check_there()  # before any lock: in a forked child its owner may be a thread that is not there
        self._moves.abort(request_id)

    def abort_quietly(self, request_id: str, sink: Sink) -> None:
        """End the request of this id whose outputs go to ``sink``, if there is one."""
        if not self.is_of_this_process:
            return
        self._moves.abort_quietly(request_id, sink)

    def stats(self) -> EngineStats:
        """The sum of how the groups stand; waits for the steps that run. Raises the engine's end, or ``WorkerHung``."""
        return stats_of(self, self._runtime)

    def ask_stats(self) -> Future[EngineStats]:
        """The same without waiting. Whoever waits calls ``check_patience`` every ``LOOK_SECONDS``."""
        self.check_alive()
        parts, errors = [], []
        for client in self._clients:
            try:
                parts.append((client, client.ask_stats()))
            except EnginebayError as error:
                errors.append(error)
        if not parts:
            raise end_of_all(errors)
        return SummedStats(self._runtime, parts)

    def check_patience(self, answer: Future[EngineStats], asked: float) -> None:
        """Raise when an answer that was asked for at ``asked`` will not come."""
        assert isinstance(answer, SummedStats), "it was not asked for here"
        for client, part in answer.parts:
            client.check_patience(part, asked)

    def control(self, command: Command) -> Future[ControlDone]:
        """Ask every living group, one when the one before has done it. The future has the answer, or its error."""
        (self._check_there if isinstance(command, ReadStatus) else self.check_alive)()  # that one is answered at once
        groups = [group for group, load in enumerate(self.loads) if load is not None]
        send = sender(command, groups, self._cores, self._clients, self._places)
        return self._unison.control(self._runtime, command, groups, send, len(self._cores))

    @property
    def in_force(self) -> dict[str, str]:
        """What is in force in the groups."""
        return merged([core.in_force for core in self._cores])

    def ask_to_stop(self) -> None:
        """Ask all groups for their ends and wait for nothing: from any thread, at any time."""
        for client in self._clients:
            client.ask_to_stop()

    def stop(self) -> None:
        """End all groups and their threads by one deadline, also when workers hang; idempotent."""
        if not self.is_of_this_process:
            return
        with self._lock:
            if self._stop_deadline is None:
                self._stop_deadline = self.now + self._stop_timeout
            deadline, clients = self._stop_deadline, self._clients
        for client in clients:
            client.begin_stop(deadline)
        for client in clients:
            client.stop()

    def _look(self) -> None:
        """Whose core has died takes no more requests, and whose workers are away or late none that another can take."""
        self._moves.look()

    def _end(self) -> EnginebayError:
        deaths = (client.death() for client in self._clients)
        return end_of_all([error for error in deaths if error is not None])

    def _strictest(self) -> InProcessClient:
        """The client of the group that takes the least: a request must fit into whichever group gets it."""
        return min(self._clients, key=lambda client: client.limits.max_model_len or 0)

    def _client(self, core: EngineCore) -> InProcessClient:
        return InProcessClient(
            core,
            stop_timeout=self._stop_timeout,
            step_timeout=self._step_timeout,
            on_end=self._group_ended,
            on_request_end=lambda request_id: self._places.free(request_id),
        )

    def _group_ended(self) -> None:
        with self._lock:
            self._num_ended += 1
            last = self._num_ended == len(self._clients)
        if last:
            atexit.unregister(self.stop)
            self._on_end()
