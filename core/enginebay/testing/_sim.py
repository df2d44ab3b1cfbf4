"""A runner whose device is a dictionary: it computes each token from what really stands in the KV blocks.

It knows, for each slot of each block, the fingerprint of the tokens up to that position. Reading a slot that was never
written, or that another request overwrote, is so seen at once, and would give another token too.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from enginebay.messages import EngineRequest, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import RequestTable, ScheduledRow

VOCABULARY = 1000
EOS_EVERY = 23
_MODULUS = (1 << 61) - 1


def is_eos(token: int) -> bool:
    """Whether the simulated model means this token as its end."""
    return token % EOS_EVERY == 0


def root_of(request: EngineRequest) -> int:
    """Where a request's fingerprints start: adapter and salt change what the cache holds."""
    return crc32(f"{request.cache_salt}\0{request.adapter}".encode())


def mix(fingerprint: int, token: int) -> int:
    """The fingerprint after one more token."""
    return (fingerprint * 1_000_003 + token + 1) % _MODULUS


def expected_tokens(request: EngineRequest, max_model_len: int) -> list[int]:
    """What the simulated model answers when nothing goes wrong: everything that is generated, committed or not."""
    fingerprint = root_of(request)
    for token in request.prompt_token_ids:
        fingerprint = mix(fingerprint, token)
    answer: list[int] = []
    limit = min(request.params.max_tokens, max_model_len - len(request.prompt_token_ids))
    while len(answer) < limit:
        answer.append(fingerprint % VOCABULARY)
        if is_eos(answer[-1]) and not request.params.ignore_eos:
            break
        fingerprint = mix(fingerprint, answer[-1])
    return answer


def guess(prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
    """Proposals such as speculation makes: often what the simulated model says next, and now and then not."""
    fingerprint = crc32(b"\0")  # of a request without salt and adapter; one that has them is guessed wrongly
    for token in (*prompt, *output):
        fingerprint = mix(fingerprint, token)
    guessed: list[int] = []
    for _ in range(fingerprint % (at_most + 1)):
        guessed.append(fingerprint % VOCABULARY if fingerprint % 5 else fingerprint % 7)
        fingerprint = mix(fingerprint, guessed[-1])
    return tuple(guessed)


class SimulatedRunner:
    """Executes steps in order; raises ``AssertionError`` when the schedule breaks a rule of the KV cache.

    ``rows`` is the last step's batch, ``written`` the blocks that it wrote to, ``context`` how many tokens of each row
    were in the cache after it (proposals counted), ``live`` who has not ended.
    """

    def __init__(self, *, num_blocks: int, block_size: int, reserved_blocks: int = 0) -> None:
        self.table = RequestTable()
        self.table.limit_blocks(num_blocks, [block_size], [None])
        self.roots: dict[str, int] = {}
        self.rows: list[ScheduledRow] = []
        self.live: dict[str, None] = {}
        self.written: set[int] = set()
        self.context: dict[str, int] = {}
        self._block_size = block_size
        self._ids = range(reserved_blocks, num_blocks)
        self._memory: dict[int, list[int | None]] = {}

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """One step."""
        self.rows = self.table.begin_step(output)
        for request_id in output.finished:
            self.live.pop(request_id, None)
        for new in output.new:
            self.live[new.request_id] = None
        owners = self._owners()
        self.written = set()
        drawn = {}
        self.context = {}
        for row in self.rows:
            self._write(row, owners)
        for row in self.rows:
            if row.samples:
                drawn[row.row.request_id] = self._draw(row)
        return self.table.finish_step(drawn)

    def _owners(self) -> dict[int, int]:
        owners: dict[int, int] = {}
        for request_id in self.live:
            row = self.table.get(request_id)
            assert row is not None
            ids = row.block_ids[0]
            assert len(set(ids)) == len(ids), f"{request_id} holds a block twice: {ids}"
            for block in ids:
                assert block in self._ids, f"{request_id} was given block {block}, which is reserved or unknown"
                owners[block] = owners.get(block, 0) + 1
        return owners

    def _write(self, scheduled: ScheduledRow, owners: dict[int, int]) -> None:
        row, size = scheduled.row, self._block_size
        start = row.num_computed_tokens
        fingerprint = self._verify(scheduled, start)
        self.context[row.request_id] = start + scheduled.num_tokens
        for position, token in enumerate(scheduled.token_ids, start):
            assert position // size < len(row.block_ids[0]), f"{row.request_id} has no block for token {position}"
            block = row.block_ids[0][position // size]
            assert owners[block] == 1, f"{row.request_id} writes to block {block}, which {owners[block]} requests hold"
            fingerprint = mix(fingerprint, token)
            self._memory.setdefault(block, [None] * size)[position % size] = fingerprint
            self.written.add(block)

    def _verify(self, scheduled: ScheduledRow, end: int) -> int:
        """Compare the cache up to ``end`` with the request's own tokens; the fingerprint that it ends in."""
        row, size = scheduled.row, self._block_size
        fingerprint = self.roots[row.request_id]
        for position in range(end):
            fingerprint = mix(fingerprint, row.token_ids[position])
            block = row.block_ids[0][position // size]
            found = self._memory.get(block, [None] * size)[position % size]
            assert found is not None, f"{row.request_id} reads token {position} in block {block} before it was written"
            assert found == fingerprint, f"{row.request_id} reads another's token {position} in block {block}"
        return fingerprint

    def _draw(self, scheduled: ScheduledRow) -> tuple[int, ...]:
        """The next token, and one more after each proposal that was right."""
        known = scheduled.row.num_computed_tokens + scheduled.num_tokens - len(scheduled.draft_token_ids)
        fingerprint = self._verify(scheduled, known)
        drawn = [fingerprint % VOCABULARY]
        for proposal in scheduled.draft_token_ids:
            if proposal != drawn[-1]:
                break
            fingerprint = mix(fingerprint, proposal)
            drawn.append(fingerprint % VOCABULARY)
        return tuple(drawn)
