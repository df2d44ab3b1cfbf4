"""What a schedule says of the live requests, noted before it is sent: who draws, from where on, and what is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from enginebay.engine.live import Live, Lives
from enginebay.engine.steps import Batch, drafts_of
from enginebay.errors import PolicyFailed
from enginebay.messages import NewRequest, ResumedRequest, RunningRequest, SchedulerOutput

__all__ = ["observe"]


def observe(
    lives: Lives, sent: SchedulerOutput, now_ns: int, scheduler: str, held: Callable[[str], bool]
) -> tuple[Batch, int]:
    """Note a schedule; returns its batch, and how many tokens of prompts it sends to be computed for the first time.

    ``held``: whether a request has not been given to the scheduler yet. Raises ``PolicyFailed`` with the scheduler's
    name for a request that cannot run, or not so.
    """
    if sent.preempted:
        _note_preempted(lives, sent.preempted, now_ns)
    if sent.new or sent.resumed:
        _look_at_told(lives, sent, scheduler)
        _note_begun(lives, (*sent.new, *sent.resumed))
    batch = Batch({}, set(), drafts_of(sent))
    rows, partial, drafts = batch
    step, num_prefilled, begun, counts = sent.step, 0, lives.begun, sent.num_scheduled_tokens
    for request_id, count, told in zip(counts, counts.values(), _told_of_each(sent), strict=True):
        live = begun.get(request_id)
        if live is None and not held(request_id):  # it has no step yet
            live = lives.begin(request_id)
        if live is None or told is None:
            fault = "which has ended or never came" if live is None else "and did not say how it runs"
            raise PolicyFailed(f"{scheduler} scheduled request {request_id!r} in step {step}, {fault}")
        known, before, end = live.expected, live.computed, told.num_computed_tokens + count
        rows[request_id] = live, known - live.num_prompt
        if drafts or live.verifying:
            end -= _look_at_drafts(live, drafts.get(request_id, ()), end, known, scheduler)
        if end >= known:
            live.expected = known + 1
        else:
            partial.add(request_id)
        if end > before:
            live.computed = end
            if before < live.num_prompt:
                num_prefilled += min(end, live.num_prompt) - before
                if not before:
                    live.timeline.scheduled(step, now_ns)
        live.last_step = step
    return batch, num_prefilled


def _told_of_each(sent: SchedulerOutput) -> Iterable[NewRequest | RunningRequest | ResumedRequest | None]:
    """What a schedule says of each request that has tokens in it, in their order; None where it says nothing."""
    told: tuple[NewRequest | RunningRequest | ResumedRequest, ...] = (*sent.running, *sent.resumed, *sent.new)
    if [one.request_id for one in told] == [*sent.num_scheduled_tokens]:  # as our own schedulers tell it
        return told
    told = (*sent.running, *sent.new, *sent.resumed)
    by_id = {one.request_id: one for one in told}
    return [by_id.get(request_id) for request_id in sent.num_scheduled_tokens]


def _note_preempted(lives: Lives, request_ids: Iterable[str], now_ns: int) -> None:
    for request_id in request_ids:
        if (live := lives.get(request_id)) is not None:
            live.row.preemptions += 1
            live.timeline.event("preempted", now_ns)


def _note_begun(lives: Lives, begins: Iterable[NewRequest | ResumedRequest]) -> None:
    """What is computed before a request begins was found in the cache, or is lost and computed again."""
    for begun in begins:
        if (live := lives.get(begun.request_id)) is None:
            continue
        row = live.row
        if live.computed:  # also as new, by a fresh scheduler
            row.recomputed_tokens += max(0, live.computed - begun.num_computed_tokens)
        else:
            row.cached_tokens = min(begun.num_computed_tokens, len(row.prompt_token_ids))


def _look_at_told(lives: Lives, sent: SchedulerOutput, scheduler: str) -> None:
    """What a runner is told of a request is what the client asked: another prompt would be answered as if it were."""
    begun: tuple[NewRequest | ResumedRequest, ...] = (*sent.new, *sent.resumed)
    for told in begun:
        if (live := lives.get(told.request_id)) is None:
            continue
        row, other = live.row, ""
        if told.token_ids != ((*row.prompt_token_ids, *row.committed) if row.committed else row.prompt_token_ids):
            other = f"{len(told.token_ids)} tokens that are not the {len(row.prompt_token_ids)} of its prompt and the "
            other += f"{len(row.committed)} that it has got"
        elif isinstance(told, NewRequest):
            if told.num_prompt_tokens != len(row.prompt_token_ids):
                other = f"a prompt of {told.num_prompt_tokens} tokens, and it has {len(row.prompt_token_ids)}"
            elif told.params is not row.params and told.params != row.params:
                other = "other sampling parameters than it asked for"
            elif told.seed != row.seed:
                other = f"the seed {told.seed}, and it has {row.seed}"
            elif told.choice and told.choice != row.choice:  # one of API 1.0 says 0 of each: its choices end alone
                other = f"the choice {told.choice}, and it is {row.choice}"
            elif told.extra and told.extra != row.extra:
                other = "another extra than it came with"
        if other:
            raise PolicyFailed(f"{scheduler} scheduled request {told.request_id!r} in step {sent.step} with {other}")


def _look_at_drafts(live: Live, drafts: tuple[int, ...], end: int, known: int, scheduler: str) -> int:
    """How many proposals a request has in a step that computes up to ``end``; refused where they cannot stand."""
    who = f"{scheduler} scheduled"
    if live.verifying:
        raise PolicyFailed(
            f"{who} request {live.row.request_id!r} again before it is known which of its proposals hold"
        )
    if drafts:
        if live.ahead or end != known + len(drafts):
            raise PolicyFailed(
                f"{who} {len(drafts)} proposals for request {live.row.request_id!r}, and not right behind its "
                f"{known} known tokens"
            )
        live.verifying = True
    return len(drafts)
