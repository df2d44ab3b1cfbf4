"""A runner's limits in the plan: they fill what is unset, and refuse what was set and does not fit."""

from __future__ import annotations

import pytest

from support.fake_dist import FakeSite
from support.plans import in_force, make_plan, refused


@pytest.mark.parametrize(
    ("constraints", "sets", "name", "value", "why"),
    [
        ("block_sizes=(64, 128)", "", "block_size", "64", "runner 'acme' 3.0 (its first allowed size; default 16)"),
        ("block_sizes=(64, 128)", "cache.block_size=128", "block_size", "128", "--set"),
        ("max_num_seqs=8", "", "max_num_seqs", "8", "runner 'acme' 3.0 takes 8; default 256"),
        ("max_num_seqs=8", "scheduler.max_num_seqs=4", "max_num_seqs", "4", "--set"),
        (
            "max_num_batched_tokens=512",
            "",
            "max_num_batched_tokens",
            "512",
            "runner 'acme' 3.0 takes 512; default 2048",
        ),
        ("max_num_batched_tokens=99", "", "max_num_seqs", "99", "no more than max_num_batched_tokens; default 256"),
        (
            "",
            "scheduler.max_num_batched_tokens=64",
            "max_num_seqs",
            "64",
            ("no more than max_num_batched_tokens; default 256"),
        ),
        ("", "scheduler.max_num_seqs=4096", "max_num_batched_tokens", "4096", "as many as max_num_seqs; default 2048"),
        ("chunked_prefill=False", "", "chunked_prefill", "off", "runner 'acme' 3.0 cannot do it"),
        (
            "chunked_prefill=False",
            "",
            "max_num_batched_tokens",
            "8192",
            ("as many as max_model_len, since prompts are not split; default 2048"),
        ),
        (
            "",
            "scheduler.chunked_prefill=false",
            "max_num_batched_tokens",
            "8192",
            ("as many as max_model_len, since prompts are not split; default 2048"),
        ),
        ("chunked_prefill=False", "model.max_model_len=512", "max_num_batched_tokens", "2048", "default"),
        (
            "chunked_prefill=False, max_num_batched_tokens=1024",
            "",
            "max_model_len",
            "1024",
            ("runner 'acme' 3.0 takes 1024 tokens of one step, and a prompt is not split; the model's is 8192"),
        ),
        (
            "max_batch_context_tokens=4096",
            "",
            "max_model_len",
            "4096",
            ("runner 'acme' 3.0 takes 4096 tokens of context in a batch; the model's is 8192"),
        ),
        (
            "chunk_multiple=4096",
            "",
            "max_num_batched_tokens",
            "4096",
            ("runner 'acme' 3.0 takes prompts in multiples of 4096; default 2048"),
        ),
        ("prefix_caching=False", "", "prefix_caching", "off", "runner 'acme' 3.0 cannot do it"),
    ],
)
def test_constraints_fill_what_is_unset(
    parts: FakeSite, constraints: str, sets: str, name: str, value: str, why: str
) -> None:  # P8
    parts.runner("acme", f"constraints=BatchConstraints({constraints})", "preference=50", version="3.0")
    planned = make_plan(parts, *sets.split())
    assert in_force(planned)[name] == (value, why)
    limits = {
        "block_size": planned.block_size,
        "max_num_seqs": planned.limits.max_num_seqs,
        "max_num_batched_tokens": planned.limits.max_num_batched_tokens,
        "max_model_len": planned.max_model_len,
        "chunked_prefill": "on" if planned.limits.chunked_prefill else "off",
        "prefix_caching": "on" if planned.prefix_caching else "off",
    }
    assert str(limits[name]) == value


@pytest.mark.parametrize(
    ("constraints", "sets", "message"),
    [
        (
            "block_sizes=(64, 128)",
            "cache.block_size=16",
            (
                "[cache] block_size = 16 (--set) does not fit runner 'acme' "
                "3.0, which takes 64, 128: leave it out, or choose one of these."
            ),
        ),
        (
            "max_num_seqs=8",
            "scheduler.max_num_seqs=9",
            ("[scheduler] max_num_seqs = 9 (--set) does not fit runner 'acme' 3.0, which takes 8: lower it."),
        ),
        (
            "max_num_batched_tokens=64",
            "scheduler.max_num_batched_tokens=65",
            (
                "[scheduler] max_num_batched_tokens = 65 "
                "(--set) does not fit runner 'acme' 3.0, which takes 64: lower it."
            ),
        ),
        (
            "chunked_prefill=False",
            "scheduler.chunked_prefill=true",
            (
                "[scheduler] chunked_prefill = true (--set) does "
                "not fit runner 'acme' 3.0, which cannot do it: leave it out, or set it to false."
            ),
        ),
        (
            "prefix_caching=False",
            "cache.prefix_caching=true",
            (
                "[cache] prefix_caching = true (--set) does "
                "not fit runner 'acme' 3.0, which cannot do it: leave it out, or set it to false."
            ),
        ),
        (
            "",
            "model.max_model_len=9000",
            ("[model] max_model_len = 9000 (--set) does not fit the model tiny, which takes 8192 tokens: lower it."),
        ),
        (
            "max_batch_context_tokens=100",
            "model.max_model_len=200",
            (
                "[model] max_model_len = 200 (--set) does not fit "
                "runner 'acme' 3.0, which takes 100 tokens of context in a batch: lower it."
            ),
        ),
        (
            "chunked_prefill=False",
            "scheduler.max_num_batched_tokens=1000",
            (
                "[scheduler] max_num_batched_tokens = 1000 "
                "(--set) does not fit max_model_len = 8192 while prompts are not split: raise it to 8192, set [model] "
                "max_model_len = 1000, or turn chunked_prefill on."
            ),
        ),
        (
            "chunk_multiple=128",
            "scheduler.max_num_batched_tokens=100",
            (
                "[scheduler] max_num_batched_tokens = 100 "
                "(--set) does not fit runner 'acme' 3.0, which takes prompts in multiples of 128: raise it."
            ),
        ),
        (
            "",
            "scheduler.max_num_batched_tokens=8 scheduler.max_num_seqs=16",
            (
                "[scheduler] max_num_seqs = 16 (--set) "
                "does not fit max_num_batched_tokens = 8 (--set), since every running request takes a token of each "
                "step: lower the one or raise the other."
            ),
        ),
    ],
)
def test_what_was_set_and_does_not_fit_is_refused(
    parts: FakeSite, constraints: str, sets: str, message: str
) -> None:  # P8
    parts.runner("acme", f"constraints=BatchConstraints({constraints})", "preference=50", version="3.0")
    assert refused(parts, *sets.split()) == message
