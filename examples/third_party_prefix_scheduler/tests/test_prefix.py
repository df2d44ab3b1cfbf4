"""The policy's own order, and everything that enginebay asks of a scheduler."""

from __future__ import annotations

from typing import ClassVar

from enginebay_prefix.policy import CachedFirst, PrefixOptions

from enginebay.interfaces import SchedulerPlugin
from enginebay.kvcache import KVCacheManager
from enginebay.testing import CoreLoop, SchedulerSuite, make_limits, make_request

DOCUMENT, OTHER = tuple(range(100, 140)), tuple(range(500, 540))


class TestConformance(SchedulerSuite):
    """enginebay's own suite, through the installed entry point."""

    name = "prefix"


class TestConformanceWithAShortWindow(SchedulerSuite):
    """The same with the options set."""

    name = "prefix"
    options: ClassVar = {"window": 2, "reach": 3}


def loop_of(options: PrefixOptions, num_blocks: int = 12) -> CoreLoop:
    """A simulated core that runs one request at a time, with room for little more than one in its cache."""
    return CoreLoop(
        SchedulerPlugin(name="prefix", options=PrefixOptions, factory=CachedFirst),
        options,
        limits=make_limits(max_num_seqs=1),
        cache=KVCacheManager(num_blocks=num_blocks, block_size=4),
    )


def order_of_end(loop: CoreLoop, *documents: tuple[int, ...]) -> list[str]:
    """Questions to these documents, in the order in which they are answered."""
    loop.add(*(make_request(n, (*text, n), max_tokens=2) for n, text in enumerate(documents)))
    loop.run()
    return list(loop.finished)


def test_questions_to_one_document_follow_each_other() -> None:
    loop = loop_of(PrefixOptions())
    assert order_of_end(loop, DOCUMENT, OTHER, DOCUMENT, OTHER, DOCUMENT) == ["r0", "r2", "r4", "r1", "r3"]
    assert loop.cache.prefix_hits == 3 * 40


def test_without_anything_in_the_cache_arrival_decides() -> None:
    assert order_of_end(loop_of(PrefixOptions()), *((at,) * 8 for at in range(4))) == ["r0", "r1", "r2", "r3"]


def test_no_more_may_go_ahead_than_the_reach_says() -> None:
    documents = (DOCUMENT, OTHER, *(DOCUMENT,) * 6)
    assert order_of_end(loop_of(PrefixOptions(reach=2)), *documents).index("r1") == 3
    assert order_of_end(loop_of(PrefixOptions()), *documents).index("r1") == 7


def test_what_is_beyond_the_window_is_not_looked_at() -> None:
    documents = (DOCUMENT, OTHER, OTHER, DOCUMENT)
    assert order_of_end(loop_of(PrefixOptions(window=2)), *documents) == ["r0", "r1", "r2", "r3"]
