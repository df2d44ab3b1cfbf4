"""Groups behind one front end whose loops a test turns by hand, over fake workers that die when it says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from enginebay.engine.admission.admit import Ask
from enginebay.engine.grammars import Grammars
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.errors import WorkerLost
from enginebay.messages import Envelope, ExecuteModel, FinishReason, Replies, SamplingParams, StructuredOutput
from enginebay.status.restarts import RestartRules
from enginebay.transport import decode_call
from support.clock import FakeClock, fake_runtime
from support.fake_engine import EOS, FEATURES, text_token
from support.fake_grammars import FakeCompiler, a_store
from support.groups import Sink
from support.mortal import Mortal, failed
from support.rosters import FOR_EVER, rosters_of

__all__ = ["Hand", "MakeHand", "busy", "expected"]

OF_ASK = ("timeout", "priority", "tenant", "cache_salt", "adapter")


def expected(prompt: str, most: int, choice: int = 0) -> list[int]:
    """What an undisturbed request is answered."""
    tokens = [text_token(prompt.encode(), index, choice) for index in range(most)]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


class Hand:
    """``set`` over ``engines``; nothing happens but in ``turn`` and ``run``.

    ``doomed`` are groups whose workers die of their next step, ``poison`` requests that any worker dies of.
    ``in_respawn`` is called with a group whose next worker is being started, and while there is none.
    """

    def __init__(self, count: int = 2, *, rules: RestartRules = FOR_EVER, **parts: Any) -> None:
        self.clock = FakeClock()
        runtime = fake_runtime(self.clock)
        settings = {"features": FEATURES, "runtime": runtime, "max_num_batched_tokens": 16, "requests": {}}
        self.engines = [
            Mortal(**{**settings, "grammars": Grammars(a_store(FakeCompiler())), "roster": roster, **parts})
            for roster in rosters_of(runtime, count, rules)
        ]
        self.doomed: set[int] = set()
        self.poison: set[str] = set()
        self.deaths = [0] * count
        self.wrong: list[AssertionError] = []
        self.in_respawn: Callable[[int], None] = lambda group: None
        self.sinks: dict[str, Sink] = {}
        self.asked: dict[str, tuple[str, int, int]] = {}
        self.set = ReplicaSet([one.core for one in self.engines], stop_timeout=5.0)
        self.loops = [client._loop for client in self.set._clients]
        for group, (engine, loop) in enumerate(zip(self.engines, self.loops, strict=True)):
            loop.is_alive = lambda: True  # type: ignore[method-assign]  # it is turned by hand
            loop._wait = self._pass  # type: ignore[method-assign]  # nothing comes by waiting
            self._arm(group, engine)

    def _arm(self, group: int, engine: Mortal) -> None:
        submit = engine.executor.submit

        def dying(envelope: Envelope) -> Future[Replies]:
            call = decode_call(envelope.payload)
            if isinstance(call, ExecuteModel):
                names = {name.partition("#")[0] for name in call.scheduler_output.num_scheduled_tokens}
                if names and (group in self.doomed or names & self.poison):
                    self.doomed.discard(group)
                    self.deaths[group] += 1
                    return failed(envelope, WorkerLost("rank 0: it ended before it answered"))
            return submit(envelope)

        engine.executor.submit = dying  # type: ignore[method-assign]  # a worker that dies

        def started() -> None:
            try:
                self.in_respawn(group)
            except AssertionError as error:  # else the engine dies of it, and nobody hears
                self.wrong.append(error)
            engine.watch.meanwhile()

        engine.in_respawn = started

    def _pass(self, seconds: float) -> None:
        self.clock.time += seconds

    def ask(self, request_id: str, prompt: str, most: int = 9, **rest: Any) -> Sink:
        """Send a request; ``timeout``, ``priority`` and such are the ask's, all else is a sampling parameter."""
        own = {name: rest.pop(name) for name in OF_ASK if name in rest}
        params = SamplingParams(max_tokens=most, **rest)
        self.asked[request_id] = prompt, most, params.n
        sink = self.sinks[request_id] = Sink()
        self.set.add_request(
            Ask(request_id=request_id, prompt_token_ids=tuple(prompt.encode()), params=params, **own), sink
        )
        return sink

    def structured(self, request_id: str, prompt: str, most: int = 9) -> Sink:
        """Send one that has to come out as it comes out anyway."""
        text = bytes(token for token in expected(prompt, 100) if token != EOS).decode()
        return self.ask(request_id, prompt, most, structured=StructuredOutput(choice=(text,)))

    def group_of(self, request_id: str) -> int | None:
        return self.set._places.group_of(request_id)

    def turn(self, group: int) -> bool:
        """One turn of a group's loop; whether there was anything to do."""
        loop = self.loops[group]
        if not loop._inbox and not self.engines[group].core.has_work():
            return False
        loop.turn()
        return True

    def run(self, most: int = 2000) -> None:
        """Turn all until nothing is left."""
        for _ in range(most):
            if not [group for group in range(len(self.loops)) if self.turn(group)]:
                return
        raise AssertionError("work is left")

    def run_until(self, happened: Callable[[], bool], most: int = 200) -> None:
        """Turn all until then."""
        for _ in range(most):
            for group in range(len(self.loops)):
                if happened():
                    return
                self.turn(group)
        raise AssertionError("it did not happen")

    def check(self, *failing: str) -> None:
        """Every request has ended once, with the tokens of an undisturbed one, and nothing of any is left."""
        for error in self.wrong:
            raise error
        for request_id, sink in self.sinks.items():
            prompt, most, n = self.asked[request_id]
            assert not sink.errors, (request_id, sink.errors)
            ends = [one for one in sink.outputs if one.finish_reason is not None]
            assert sorted(one.choice for one in ends) == list(range(n)), (request_id, ends)
            for choice in range(n):
                tokens: list[int] = []
                for one in sink.outputs:
                    if one.choice == choice:
                        assert one.offset == len(tokens), f"{request_id}: {one.offset}, and {len(tokens)} have come"
                        tokens += one.token_ids
                full = expected(prompt, most, choice)
                bad = any(one.finish_reason in (FinishReason.ERROR, FinishReason.ABORT) for one in ends)
                assert bad == (request_id in failing), (request_id, ends)
                assert tokens == (full[: len(tokens)] if bad else full), request_id
        self.check_empty()

    def check_empty(self) -> None:
        assert self.set._places._live == {}
        for engine, client, loop in zip(self.engines, self.set._clients, self.loops, strict=True):
            assert client._live.all() == []
            assert loop._readers == {}
            assert len(engine.core._requests) == 0
            assert list(engine.core._requests._live) == []
            if engine.core.death() is None:
                assert engine.kv.num_free_blocks == 64
        assert {load for load in self.set.loads if load is not None} <= {0}

    def close(self) -> None:
        for loop in self.loops:
            loop._stopping = True
            loop.run()


MakeHand = Callable[..., Hand]


def busy(hand: Hand, count: int = 6) -> None:
    """Requests of every kind, half of them in each group."""
    for number in range(count):
        if number == 2:
            hand.ask("r2", "with choices, say:choice %", n=3, temperature=1.0)
        elif number == 3:
            hand.structured("r3", "of a shape, say:abcdefg")
        else:
            hand.ask(f"r{number}", f"a long prompt of number {number}, say:answer {number}", seed=number)
