"""Requests, limits, constraints and whole random loads for tests of schedulers, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as with_fields
from random import Random

from msgspec import structs

from enginebay.errors import CapabilityError, RequestTooLong
from enginebay.interfaces import BatchConstraints, SchedulerLimits
from enginebay.kvcache import KVCacheManager
from enginebay.messages import EngineRequest, SamplingParams
from enginebay.scheduling import check_fits


def make_request(
    number: int,
    prompt: int | tuple[int, ...] = 8,
    *,
    max_tokens: int = 4,
    ignore_eos: bool = True,
    committed: tuple[int, ...] = (),
    priority: int = 0,
    tenant: str = "",
    deadline: float | None = None,
    salt: str = "",
    adapter: str = "",
    request_id: str | None = None,
    choice: int = 0,
    parent_id: str = "",
    prompt_logprobs: int | None = None,
) -> EngineRequest:
    """Request ``number`` (its id is ``r<number>``), with a prompt of so many tokens of its own, or of these."""
    if isinstance(prompt, int):
        prompt = tuple(1000 * (number + 1) + position for position in range(prompt))
    return EngineRequest(
        request_id=f"r{number}" if request_id is None else request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, prompt_logprobs=prompt_logprobs),
        seed=number,
        arrival=float(number),
        arrival_number=number,
        committed_token_ids=committed,
        priority=priority,
        tenant=tenant,
        deadline=deadline,
        cache_salt=salt,
        adapter=adapter,
        choice=choice,
        parent_id=parent_id,
    )


def make_limits(
    *, max_num_seqs: int = 16, max_num_batched_tokens: int = 64, max_model_len: int = 256, **more: object
) -> SchedulerLimits:
    """Limits of a small engine; ``more`` are the other fields of ``SchedulerLimits``."""
    return SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        **more,  # type: ignore[arg-type]  # handed through, checked by the tests that name them
    )


@dataclass(frozen=True, kw_only=True)
class Load:
    """A random load: the engine's size and bounds, when each request comes, and when which is aborted."""

    limits: SchedulerLimits
    constraints: BatchConstraints
    num_blocks: int
    block_size: int
    prefix_caching: bool
    arrivals: dict[int, list[EngineRequest]]
    aborts: dict[int, list[str]]

    def cache(self) -> KVCacheManager:
        """An empty KV cache of that size."""
        return KVCacheManager(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            prefix_caching=self.prefix_caching,
            reserved_blocks=self.constraints.reserved_blocks,
        )


def random_load(seed: int, *, num_requests: int = 40) -> Load:
    """A load with tiny caches and odd constraints, every request of which can finish."""
    random = Random(seed)  # noqa: S311  # no secret: a test's load
    while True:
        limits, constraints = _random_bounds(random)
        block_size = random.choice((1, 2, 4, 8))
        num_blocks = constraints.reserved_blocks + max(2, random.randrange(16, 200) // block_size)
        cache = KVCacheManager(
            num_blocks=num_blocks, block_size=block_size, reserved_blocks=constraints.reserved_blocks
        )
        arrivals: dict[int, list[EngineRequest]] = {}
        aborts: dict[int, list[str]] = {}
        step = made = 0
        try:
            for number in range(num_requests * 4):
                request = _random_request(random, number, limits.max_model_len)
                try:
                    check_fits(len(request.prompt_token_ids), request.params.max_tokens, limits, cache, constraints)
                except RequestTooLong:
                    continue
                step += random.choice((0, 0, 0, 1, 1, 5))
                arrivals.setdefault(step, []).append(request)
                if random.random() < 0.1:
                    aborts.setdefault(step + random.randrange(12), []).append(request.request_id)
                made += 1
                if made == num_requests:
                    break
        except CapabilityError:  # these bounds let no prompt run at all: draw others
            continue
        if made:
            return Load(
                limits=limits,
                constraints=constraints,
                num_blocks=num_blocks,
                block_size=block_size,
                prefix_caching=constraints.prefix_caching and random.random() < 0.8,
                arrivals=arrivals,
                aborts=aborts,
            )


def enliven(load: Load, seed: int) -> Load:
    """The same load with requests of several choices, and with deadlines that pass (a step is 0.01 s)."""
    random = Random(seed)  # noqa: S311  # no secret: a test's load
    arrivals: dict[int, list[EngineRequest]] = {}
    deadlines: dict[int, list[str]] = {}
    choices: dict[str, list[str]] = {}
    for step, requests in load.arrivals.items():
        arrivals[step] = []
        for request in requests:
            drawn, name = random.random(), request.request_id
            if drawn < 0.1:
                due = step + random.randrange(100)
                deadlines.setdefault(due, []).append(name)
                arrivals[step].append(structs.replace(request, deadline=due * 0.01))
            elif drawn < 0.2:
                choices[name] = [f"{name}-{n}" for n in range(random.randrange(2, 5))]
                arrivals[step] += [
                    structs.replace(request, choice=n, parent_id=name, request_id=choice)
                    for n, choice in enumerate(choices[name])
                ]
            else:
                arrivals[step].append(request)
    aborts = {
        step: [one for name in load.aborts.get(step, ()) for one in choices.get(name, [name])] + deadlines.get(step, [])
        for step in sorted({*load.aborts, *deadlines})
    }
    return with_fields(load, arrivals=arrivals, aborts=aborts)


def _random_bounds(random: Random) -> tuple[SchedulerLimits, BatchConstraints]:
    def maybe(low: int, high: int) -> int | None:
        return random.randrange(low, high) if random.random() < 0.25 else None

    limits = SchedulerLimits(
        max_num_seqs=random.choice((1, 2, 3, 8, 32)),
        max_num_batched_tokens=random.choice((1, 3, 16, 64, 200)),
        max_model_len=random.choice((16, 48, 96)),
        chunked_prefill=random.random() < 0.8,
        long_prefill_token_threshold=random.choice((0, 0, 1, 5, 16)),
        reserve_whole_prompt=random.random() < 0.2,
        watermark=random.choice((0.0, 0.0, 0.1, 0.5)),
        no_evict=random.random() < 0.15,
    )
    constraints = BatchConstraints(
        chunk_multiple=random.choice((1, 1, 1, 2, 4, 16)),
        chunked_prefill=random.random() < 0.9,
        mixed_prefill_decode=random.random() < 0.7,
        max_prefills_per_step=maybe(1, 4),
        max_consecutive_prefill_steps=maybe(1, 4),
        max_num_seqs=maybe(1, 8),
        max_batch_context_tokens=maybe(16, 200),
        max_num_batched_tokens=maybe(1, 64),
        reserved_blocks=random.choice((0, 0, 1, 3)),
        prefix_caching=random.random() < 0.8,
    )
    return limits, constraints


def _random_request(random: Random, number: int, max_model_len: int) -> EngineRequest:
    length = random.randrange(1, random.choice((4, 16, max_model_len)))
    shared = random.randrange(3)  # a few common beginnings, so that prefixes are found
    prompt = tuple(
        100 * shared + position if position < length * 2 // 3 else random.randrange(1000) for position in range(length)
    )
    return make_request(
        number,
        prompt,
        max_tokens=random.choice((1, 2, 5, 20)),
        ignore_eos=random.random() < 0.5,
        priority=random.randrange(3),
        tenant=random.choice(("", "a", "b")),
        salt=random.choice(("", "", "", "pepper")),
        adapter=random.choice(("", "", "", "lora")),
    )
