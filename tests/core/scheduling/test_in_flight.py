"""Steps scheduled before the last one is acknowledged: placeholders, held blocks, nothing drawn twice."""

from __future__ import annotations

from enginebay.interfaces import RequestView
from enginebay.messages import Committed, FinishReason
from enginebay.testing import make_request
from support.loop import Arrival, loop_of, scheduled


def test_exactly_max_tokens_are_computed() -> None:
    loop = loop_of(depth=2)
    loop.add(make_request(0, 8, max_tokens=3))
    tokens = [scheduled(loop.step()).get("r0", 0) for _ in range(5)]
    assert tokens == [8, 1, 1, 0, 0]


def test_blocks_of_an_aborted_request_are_held_until_its_step_is_acknowledged() -> None:
    loop = loop_of(depth=2, num_blocks=4)
    loop.add(make_request(0, 8))
    loop.step()
    loop.abort("r0")
    assert loop.cache.num_free_blocks == 2
    loop.step()
    assert loop.cache.num_free_blocks == 4
    loop.run()


def test_an_id_can_be_used_again_while_the_old_step_is_in_flight() -> None:
    loop = loop_of(depth=2)
    scheduler = loop.scheduler
    scheduler.add_request(make_request(0, 8, request_id="same"))
    first = scheduler.schedule()
    scheduler.finish_requests(["same"], FinishReason.ABORT)
    scheduler.add_request(make_request(1, 5, request_id="same"))
    second = scheduler.schedule()
    assert (second.finished, [len(new.token_ids) for new in second.new]) == (("same",), [5])
    scheduler.update_from_output(first, Committed())
    scheduler.update_from_output(second, Committed(token_ids={"same": (7,)}, finished={"same": FinishReason.STOP}))
    assert loop.cache.num_free_blocks == loop.cache.num_blocks


def test_policies_never_see_a_placeholder() -> None:
    seen: list[tuple[int, int]] = []

    class Look(Arrival):
        def on_scheduled(self, request: RequestView, num_tokens: int) -> None:
            seen.append((request.num_tokens, request.num_output_tokens))

    loop = loop_of(Look, depth=2)
    loop.add(make_request(0, 8, max_tokens=4))
    loop.run()
    assert seen == [(8, 0), (8, 0), (9, 1), (10, 2)]


def test_nothing_is_found_before_its_step_is_acknowledged() -> None:
    loop = loop_of(depth=2)
    prompt = tuple(range(12))
    loop.add(make_request(0, prompt, max_tokens=4))
    loop.step()
    loop.add(make_request(1, prompt, max_tokens=4))
    assert [new.num_computed_tokens for new in loop.step().new] == [0]
    loop.run()
