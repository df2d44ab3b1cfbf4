"""An engine over fake workers that fail and die as a test says, and what an undisturbed run of it says."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

from enginebay.engine.watch import WorkerWatch
from enginebay.errors import WorkerLost
from enginebay.interfaces import WorkerExit
from enginebay.messages import Envelope, FinishReason, Phase, RankReply, Replies, SchedulerOutput
from enginebay.status.restarts import RestartRules
from enginebay.transport import encode
from enginebay.worker import RequestTable
from enginebay.worker.failure import describe_failure
from support.clock import FakeClock, fake_runtime
from support.fake_engine import FakeEngine
from support.rosters import FOR_EVER, a_roster

PROMPTS = {
    "a": "a long prompt in chunks, say:abcdefghijkl",
    "b": "a long prompt in chunks, say:mno",
    "c": "say:pqrstu",
}
NUM_STEPS = 22
DEPTHS = [1, 2, 3]


class Mortal(FakeEngine):
    """Three requests in chunks of 8 over workers that can be started again.

    ``incarnations`` counts the workers; ``in_respawn`` is called while one is started, and may raise.
    """

    def __init__(
        self, depth: int = 1, *, requests: dict[str, str] | None = None, rules: RestartRules = FOR_EVER, **parts: Any
    ) -> None:
        self.watch = WorkerWatch()
        self.clock = FakeClock()
        self.incarnations = 1
        self.seen: list[SchedulerOutput] = []
        self.in_respawn: Callable[[], None] = lambda: None
        runtime = fake_runtime(self.clock)
        settings: dict[str, Any] = {
            "max_num_batched_tokens": 8,
            "depth": depth,
            "watch": self.watch,
            "runtime": runtime,
            "roster": a_roster(runtime, rules),
            "respawn": self.respawn,
        }
        super().__init__(**{**settings, **parts})
        self.watch.expect(("1",))
        self.executor.before = self.seen.append
        for request_id, prompt in (PROMPTS if requests is None else requests).items():
            self.add(request_id, prompt, max_tokens=9)

    def respawn(self, pause: Callable[[], None]) -> None:
        roster = self.core._parts.roster
        roster.renew(self.generation.current)
        pause()
        self.incarnations += 1
        roster.enter(Phase.STARTING)
        self.watch.expect((str(self.incarnations),))
        self.in_respawn()
        self.executor.table = RequestTable()
        roster.enter(Phase.READY)

    def report(self, incarnation: int | None = None) -> None:
        """The executor says that a worker has ended: the one that is in force, if none is named."""
        self.watch.exited(WorkerExit(rank=0, incarnation=str(incarnation or self.incarnations), signal=9))

    def fail(self, steps: set[int], error: Exception | None = None) -> None:
        """The worker raises in these steps."""

        def before(output: SchedulerOutput) -> None:
            self.seen.append(output)
            if output.step in steps:
                raise error or ValueError("boom")

        self.executor.before = before

    def check_ends(self, convicted: Collection[str] = ()) -> None:
        """All is done, as if nothing had happened; but for those who were taken for what workers die of."""
        for request_id, tokens in EXPECTED.items():
            got = self.tokens.get(request_id, [])
            assert got == (tokens[: len(got)] if request_id in convicted else tokens)
        assert self.kv.num_free_blocks == 64
        stats = self.core.stats()
        assert (stats.unfinished, stats.committed_tokens) == (0, sum(map(len, self.tokens.values())))
        assert {one for one, last in self.last.items() if last.finish_reason is FinishReason.ERROR} == set(convicted)
        generations = [output.generation for output in self.seen]
        assert generations == sorted(generations)
        assert len({output.step for output in self.seen}) == len(self.seen)
        for before, first in zip(self.seen, self.seen[1:], strict=False):
            if first.generation != before.generation:
                assert (first.running, first.resumed, first.preempted, first.finished) == ((), (), (), ())
                assert first.new[0].num_computed_tokens == 0, "found in a cache what a void step computed"


def undisturbed() -> dict[str, list[int]]:
    engine = Mortal()
    engine.run()
    return engine.tokens


EXPECTED = undisturbed()


def failed(envelope: Envelope, error: Exception) -> Future[Replies]:
    """The answer of a worker that has failed in this call."""
    reply = RankReply(rank=0, payload=encode(describe_failure(error, phase="execute_model", rank=0)))
    future: Future[Replies] = Future()
    future.set_result(Replies(generation=envelope.generation, call_id=envelope.call_id, replies=(reply,)))
    return future


def answered(engine: Mortal, envelope: Envelope) -> Future[Replies]:
    """For ``deadly``: the call is answered with the loss of its worker."""
    return failed(envelope, WorkerLost("rank 0: it ended before it answered"))


def deadly(engine: Mortal, how: Callable[[Mortal, Envelope], Future[Replies]], calls: set[int]) -> None:
    """The calls of these numbers meet a worker that dies of them."""
    submit, count = engine.executor.submit, -1

    def dying(envelope: Envelope) -> Future[Replies]:
        nonlocal count
        count += 1
        return how(engine, envelope) if count in calls else submit(envelope)

    engine.executor.submit = dying  # type: ignore[method-assign]  # a worker that dies
