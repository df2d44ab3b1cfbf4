"""What the log is told when the engine dies: what is in force, the steps in flight in numbers, and how it stood."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from enginebay.engine.steps import InFlight
from enginebay.errors import in_words, is_interrupt
from enginebay.messages import NewRequest, ResumedRequest, RunningRequest, SchedulerOutput, SchedulerStats

__all__ = ["log_error_detail"]

_log = logging.getLogger(__name__)


def log_error_detail(
    error: BaseException, in_force: Mapping[str, str], flights: Iterable[InFlight], stats: SchedulerStats
) -> None:
    """Write one record with the cause and, as JSON, its circumstances. Lengths only: no prompt, text or token id.

    What cannot be told, since a stranger's scheduler has made it of something else, keeps nobody from dying.
    """
    try:
        detail = {
            "in_force": dict(in_force),
            "steps": [_schedule(flight.sent) for flight in flights],
            "scheduler": msgspec.to_builtins(stats),
        }
        state = json.dumps(detail)
    except BaseException as failed:
        if is_interrupt(failed):
            raise
        state = f"it cannot be told: {in_words(failed)}"
    _log.info("the engine dies of this; its state: %s", state, exc_info=error)


def _schedule(sent: SchedulerOutput) -> dict[str, Any]:
    return {
        "step": sent.step,
        "generation": sent.generation,
        "new": [_new(one, sent) for one in sent.new],
        "running": [_running(one, sent) for one in sent.running],
        "resumed": [_resumed(one, sent) for one in sent.resumed],
        "finished": len(sent.finished),
        "preempted": len(sent.preempted),
    }


def _new(one: NewRequest, sent: SchedulerOutput) -> dict[str, Any]:
    return {
        **_row(one, sent),
        "num_prompt_tokens": one.num_prompt_tokens,
        "num_tokens": len(one.token_ids),
        "num_blocks": _blocks(one.block_ids),
    }


def _running(one: RunningRequest, sent: SchedulerOutput) -> dict[str, Any]:
    return {**_row(one, sent), "num_new_blocks": _blocks(one.new_block_ids)}


def _resumed(one: ResumedRequest, sent: SchedulerOutput) -> dict[str, Any]:
    return {**_row(one, sent), "num_tokens": len(one.token_ids), "num_blocks": _blocks(one.block_ids)}


def _row(one: NewRequest | RunningRequest | ResumedRequest, sent: SchedulerOutput) -> dict[str, Any]:
    return {
        "request_id": one.request_id,
        "num_computed_tokens": one.num_computed_tokens,
        "num_scheduled_tokens": sent.num_scheduled_tokens.get(one.request_id, 0),
    }


def _blocks(groups: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(len, groups))
