"""A request that can never fit is refused when it is added, with the numbers."""

from __future__ import annotations

import pytest

from enginebay.errors import RequestTooLong
from enginebay.interfaces import BatchConstraints
from enginebay.kvcache import KVCacheManager
from enginebay.scheduling import check_fits
from enginebay.testing import make_limits, make_request
from support.loop import loop_of

LIMITS = make_limits(max_num_batched_tokens=50, max_model_len=100)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "more", "message"),
    [
        (
            100,
            1,
            {},
            (
                "the prompt has 100 tokens, and a request may have 100 with its output (max_model_len): "
                "shorten the prompt to 99 tokens or fewer"
            ),
        ),
        (
            20,
            26,
            {"num_blocks": 11},
            (
                "the prompt has 20 tokens and its output up to 26: "
                "that needs 12 KV blocks of 4 tokens, and the cache has "
                "11. Ask for 45 tokens or fewer in all, or give the engine a larger cache ([cache] memory_bytes or "
                "num_blocks)"
            ),
        ),
        (
            20,
            5000,
            {"num_blocks": 11},
            (
                "the prompt has 20 tokens and its output up to 80: "
                "that needs 25 KV blocks of 4 tokens, and the cache has "
                "11. Ask for 45 tokens or fewer in all, or give the engine a larger cache ([cache] memory_bytes or "
                "num_blocks)"
            ),
        ),
        (
            20,
            12,
            {"constraints": BatchConstraints(max_batch_context_tokens=30)},
            (
                "the prompt has 20 tokens and its output up to 12: the runner takes 30 tokens of context in a batch "
                "(max_batch_context_tokens). Ask for 31 tokens or fewer in all"
            ),
        ),
        (
            45,
            7,
            {"constraints": BatchConstraints(chunked_prefill=False)},
            (
                "the prompt has 45 tokens and its output up to 7: "
                "without chunked prefill all of it must fit one step of "
                "50 tokens (max_num_batched_tokens), since a request that starts again computes its output again too. "
                "Ask for 51 tokens or fewer in all, or raise [scheduler] max_num_batched_tokens"
            ),
        ),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(  # S11
    prompt: int, max_tokens: int, more: dict[str, object], message: str
) -> None:
    blocks = more.get("num_blocks", 100)
    constraints = more.get("constraints", BatchConstraints())
    assert isinstance(blocks, int)
    assert isinstance(constraints, BatchConstraints)
    kv = KVCacheManager(num_blocks=blocks, block_size=4)
    with pytest.raises(RequestTooLong) as refused:
        check_fits(prompt, max_tokens, LIMITS, kv, constraints)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "blocks", "constraints"),
    [
        (99, 5000, 25, BatchConstraints()),
        (20, 25, 11, BatchConstraints()),
        (20, 11, 100, BatchConstraints(max_batch_context_tokens=30)),
        (45, 6, 100, BatchConstraints(chunked_prefill=False)),
    ],
)
def test_the_longest_that_is_let_in_finishes_alone(  # S11
    prompt: int, max_tokens: int, blocks: int, constraints: BatchConstraints
) -> None:
    loop = loop_of(num_blocks=blocks, limits=LIMITS, constraints=constraints)
    check_fits(prompt, max_tokens, LIMITS, loop.cache, constraints)
    loop.add(make_request(0, prompt, max_tokens=max_tokens))
    loop.run()
