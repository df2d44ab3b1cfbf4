"""The part of the executors' suite that is about who answers: every rank, in order, whole, and to its own call."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from enginebay.messages import Ack, CallExtension, ExtensionAnswered, Replies
from enginebay.testing._executor_base import ExecutorBase, several
from enginebay.testing._executor_driver import ExecutorDriver, token_of
from enginebay.testing.fakes import KIT_EXTENSION

_LARGE = 1_500_000
"""Tokens of a message of four megabytes."""


class SeveralRanks(ExecutorBase):
    """Acknowledgements, order, subsets of the ranks, large messages, and a plugin's part in each worker."""

    @several
    def test_every_rank_acknowledges_and_one_answers(self, running: ExecutorDriver) -> None:
        step, token = running.next_step()
        results = running.calls(step)
        assert token_of(results[0]) == token
        assert results[1:] == [Ack()] * (len(running.world.ranks) - 1)

    @several
    def test_a_call_is_open_until_the_last_rank_has_answered(self, running: ExecutorDriver) -> None:
        last = len(running.world.ranks) - 1
        step, token = running.next_step(b"hold@%d" % last)
        held = running.submit(step)
        # the others are done with the step when they answer one that came after it
        others = running.calls(running.next_step()[0], ranks=tuple(range(last)))
        assert len(others) == last
        assert not held.done(), "the call was answered before its last rank did"
        running.gate.touch()
        assert token_of(running.results(held)[0]) == token

    @several
    def test_a_call_to_some_ranks_is_theirs_alone(self, running: ExecutorDriver) -> None:
        last = len(running.world.ranks) - 1
        step, _ = running.next_step(b"hold@0")
        held = running.submit(step)
        call = CallExtension(method=f"{KIT_EXTENSION}.where", payload=b"you")
        (answer,) = running.calls(call, ranks=(last,))  # though rank 0 is busy
        assert isinstance(answer, ExtensionAnswered)
        assert answer.value.split()[0::2] == [b"%d" % last, b"you"]
        assert not held.done()
        running.gate.touch()
        running.results(held)
        step, token = running.next_step()
        assert running.calls(step, ranks=(last,)) == [Ack()]
        (result,) = running.calls(step, ranks=(0,))  # the fake refuses a step that it has done already
        assert token_of(result) == token

    @several
    def test_calls_to_some_and_to_all_keep_their_order_on_each_rank(self, running: ExecutorDriver) -> None:
        """The fake fails a step that comes before one that was submitted before it."""
        everyone = tuple(place.rank for place in running.world.ranks)
        futures: list[tuple[Future[Replies], int | None]] = []
        for number in range(30):
            step, token = running.next_step()
            alone = everyone[number % len(everyone)]
            ranks: tuple[int, ...] | None = None if number % 2 else (alone,)
            futures.append((running.submit(step, ranks=ranks), token if ranks is None or alone == 0 else None))
        for future, expected in futures:
            results = running.results(future)
            if expected is not None:
                assert token_of(results[0]) == expected

    def test_a_message_of_megabytes_arrives_whole_and_in_its_turn(self, running: ExecutorDriver) -> None:  # X8
        steps = [running.next_step(num_tokens=size) for size in (3, _LARGE, 5, _LARGE // 3, 3)]
        futures = [running.submit(step) for step, _ in steps]
        assert [token_of(running.results(future)[0]) for future in futures] == [token for _, token in steps]

    def test_a_plugins_part_is_in_every_worker(self, running: ExecutorDriver) -> None:  # P6
        marks = running.calls(CallExtension(method=f"{KIT_EXTENSION}.where", payload=b"here"))
        told = [mark.value.split() for mark in marks if isinstance(mark, ExtensionAnswered)]
        assert told == [[b"%d" % worker.rank, b"%d" % worker.pid, b"here"] for worker in running.workers]

    def test_a_late_reply_is_not_the_next_calls(self, running: ExecutorDriver) -> None:  # X1
        late, _ = running.next_step(b"hold")
        with pytest.raises(TimeoutError):
            running.call(late, timeout=0.01)
        step, token = running.next_step()
        future = running.submit(step)
        running.gate.touch()
        assert token_of(running.results(future)[0]) == token
        running.run_step()

    @several
    def test_a_late_reply_of_one_rank_is_not_the_next_calls(self, running: ExecutorDriver) -> None:  # X1
        late, _ = running.next_step(b"hold@%d" % (len(running.world.ranks) - 1))
        with pytest.raises(TimeoutError):
            running.call(late, timeout=0.01)
        step, token = running.next_step()
        future = running.submit(step)
        running.gate.touch()
        results = running.results(future)
        assert (token_of(results[0]), results[1:]) == (token, [Ack()] * (len(running.world.ranks) - 1))
        running.run_step()
