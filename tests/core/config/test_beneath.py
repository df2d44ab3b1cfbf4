"""Faults that others hide: what a section says as a whole, and what else is wrong with what is left of a config."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from enginebay.config import Resolved, load
from enginebay.errors import ConfigError


def said(*sets: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(None, sets=sets, environ={})
    first, *faults = [line.strip() for line in str(caught.value).splitlines()]
    assert not faults or first == f"the config has {len(faults)} faults:"
    return faults or [first]


TWICE = "--set: [cache]: memory_bytes and num_blocks say the same thing twice: keep one of them"


@pytest.mark.parametrize(
    ("sets", "ends"),
    [
        (["cache.num_blocks=4", "cache.memory_bytes=9", "cache.block_size=0"], [" and is 0", TWICE]),
        (["cache.num_blocks=4", "cache.memory_bytes=9", "cache.nothing=0"], ["offload_bytes", TWICE]),
        (["cache.num_blocks=4", "cache.memory_bytes=9", "cache.memory_utilization=7"], [" and is 7", TWICE]),
        (["cache.num_blocks=0", "cache.memory_bytes=9"], [" and is 0"]),
        (["speculation.ngram_max=1", "speculation.ngram_min=x"], [" and is 'x'"]),
        (["speculation.ngram_max=1", "speculation.max_tokens=x"], [" and is 'x'", "is more than ngram_max = 1"]),
        (["status.http.url=x", "status.sinks=5"], [" and is 5"]),
        (["worker.options.marks.mark=x", "worker.extensions=5"], [" and is 5"]),
        (["worker.options.marks.mark=x", "worker.threads=0"], [" and is 0", "does not name: name it there"]),
        (["device.ids=['a', 'b']", "device=3"], ["write --set section.key=value", "and is 'a'", "and is 'b'"]),
    ],
)
def test_one_fault_hides_no_other(sets: list[str], ends: list[str]) -> None:  # P4
    faults = said(*sets)
    assert len(faults) == len(ends)
    for fault, end in zip(faults, ends, strict=True):
        assert fault.endswith(end)


@pytest.mark.parametrize(
    ("sets", "left_out", "seed"),
    [
        (["model.seed=7", "cache.block_size=0"], {"cache.block_size"}, 7),
        (["model.seed=7", "device.ids=['a']", "model.path=''"], {"device.ids"}, 7),
        (["model.seed=-7"], {"model.seed"}, 0),
        (["model.seed=7", "nothing"], set(), 7),
    ],
)
def test_what_is_left_is_looked_at_as_well(sets: list[str], left_out: set[str], seed: int) -> None:  # P4
    asked: list[tuple[Resolved, set[str]]] = []

    def also(rest: Resolved, without: Collection[str]) -> Sequence[str]:
        asked.append((rest, set(without)))
        return ["something else"]

    with pytest.raises(ConfigError, match=r"^the config has 2 faults:\n.*\n  something else$"):
        load(None, sets=sets, environ={}, also=also)
    [(rest, without)] = asked
    assert (rest.config.model.seed, without) == (seed, left_out)


def test_a_good_config_is_not_asked_about() -> None:
    def also(rest: Resolved, without: Collection[str]) -> Sequence[str]:
        raise AssertionError("nothing is wrong")

    assert load(None, environ={}, also=also).config.model.seed == 0
