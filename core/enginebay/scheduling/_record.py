"""What the mechanics keep of a request, and the read-only face of it that policies see."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import final

from enginebay.kvcache import BlockIds, KVSequence
from enginebay.messages import EngineRequest


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREEMPTED = "preempted"
    RUNNING = "running"
    FINISHED = "finished"


WAITING, PREEMPTED, RUNNING, FINISHED = Status
"""The members by name: asking an enum for one costs more than comparing two, and it is done per request and step."""


@final
class Record:
    """One request. ``num_computed`` advances when a step is scheduled, ``num_acked`` when it is acknowledged.

    A request prefills until ``prefill_until`` tokens (all that were known when it was admitted) are computed, and
    decodes from then on. ``expected`` counts its tokens, with one for each step in flight that draws; ``in_flight``
    counts all steps in flight.
    ``fruitless`` counts preemptions since the last committed token. ``turn`` is the last step in which it stood, where
    steps are counted (``Turns``). ``followers`` are the other choices of the request, while they wait for this one's
    prompt; None when nobody may. The ``draft_`` fields belong to the step that is being drawn up, but that blocks which
    the runner has not heard of stay until it does.
    """

    __slots__ = (
        "constrained",
        "draft_blocks",
        "draft_proposals",
        "draft_tokens",
        "expected",
        "followers",
        "fruitless",
        "in_flight",
        "key",
        "known_to_runner",
        "max_total",
        "num_acked",
        "num_computed",
        "num_preemptions",
        "order",
        "output",
        "prefill_until",
        "request",
        "request_id",
        "sequence",
        "status",
        "ticket",
        "turn",
    )

    def __init__(self, request: EngineRequest, order: int, max_model_len: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.order = order
        self.output = list(request.committed_token_ids)
        self.expected = self.num_tokens
        self.max_total = min(len(request.prompt_token_ids) + request.params.max_tokens, max_model_len)
        self.constrained = request.params.structured is not None
        self.sequence: KVSequence
        self.key: tuple[object, ...] = ()
        self.status: Status = WAITING
        self.ticket = 0
        self.turn = 0
        self.num_computed = 0
        self.num_acked = 0
        self.prefill_until = 0
        self.in_flight = 0
        self.num_preemptions = 0
        self.fruitless = 0
        self.known_to_runner = False
        self.followers: list[Record] | None = None
        self.draft_tokens = 0
        self.draft_blocks: BlockIds = ()
        self.draft_proposals: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Prompt and committed tokens."""
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def placeholders(self) -> int:
        """Tokens that steps in flight will draw."""
        return self.expected - self.num_tokens

    @property
    def prefills(self) -> bool:
        """Whether the next token to compute was known when the request was admitted."""
        return self.num_computed < self.prefill_until

    @property
    def decodes(self) -> bool:
        """Whether all that was known when the request was admitted is computed, or in flight."""
        return 0 < self.prefill_until <= self.num_computed

    def got_blocks(self, blocks: BlockIds) -> None:
        """Blocks that the runner is to hear of when the request runs next: now or, if it gives way to none, later."""
        if blocks:
            before = self.draft_blocks
            self.draft_blocks = tuple(a + b for a, b in zip(before, blocks, strict=True)) if before else blocks

    @property
    def view(self) -> View:
        """What policies see; made for each look, since keeping it would tie a knot that only the collector undoes."""
        return View(self)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and committed tokens."""
        return (*self.request.prompt_token_ids, *self.output) if self.output else self.request.prompt_token_ids


@final
class View:
    """A ``RequestView``: what a policy may read. Writing to it raises ``AttributeError``."""

    __slots__ = ("__record",)

    def __init__(self, record: Record) -> None:
        self.__record = record

    def __repr__(self) -> str:
        return f"<request {self.request_id!r}: {self.num_prompt_tokens}+{self.num_output_tokens} tokens>"

    @property
    def request_id(self) -> str:
        return self.__record.request_id

    @property
    def arrival(self) -> float:
        return self.__record.request.arrival

    @property
    def arrival_number(self) -> int:
        return self.__record.request.arrival_number

    @property
    def priority(self) -> int:
        return self.__record.request.priority

    @property
    def tenant(self) -> str:
        return self.__record.request.tenant

    @property
    def deadline(self) -> float | None:
        return self.__record.request.deadline

    @property
    def extra(self) -> Mapping[str, bytes]:
        return MappingProxyType(self.__record.request.extra)

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self.__record.request.prompt_token_ids

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.__record.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.__record.output)

    @property
    def num_tokens(self) -> int:
        return self.__record.num_tokens

    @property
    def num_computed_tokens(self) -> int:
        record = self.__record  # what is computed of a token in flight is nobody's business
        return min(record.num_computed, record.num_tokens)

    @property
    def max_tokens(self) -> int:
        return self.__record.request.params.max_tokens

    @property
    def num_preemptions(self) -> int:
        return self.__record.num_preemptions
