"""A fake worker: a KV cache that knows who wrote what, and tokens computed from what is read back of it."""

from __future__ import annotations

from enginebay.messages import GrammarOutput, ModelRunnerOutput, PromptLogprobs, SchedulerOutput, TokenLogprob
from enginebay.worker import RequestTable
from enginebay.worker.table import Row, ScheduledRow
from simulation.plan import EOS, VOCAB
from simulation.reference import draw_key, drawn_token, logprob_of, next_words, root_word

__all__ = ["FakeWorker", "Violation"]


class Violation(AssertionError):
    """Something that must never be."""


class FakeWorker:
    """One device's worker. It begins with an empty cache, and forgets all of it at a new generation.

    Writing at the first slot of a block takes the block over: nobody else who is live may own it, and what stood in
    it is gone. Reading a slot that nobody wrote since is a violation.
    """

    def __init__(self, incarnation: int, block_size: int) -> None:
        self.incarnation = incarnation
        self.alive = True
        self.busy_until = 0.0
        self.failed_generation = -1
        """Of the last call that failed, or owed a token: steps that were sent after it rely on what was not done."""
        self.generation = -1
        self._size = block_size
        self._table = RequestTable()
        self._slots: dict[int, list[int]] = {}
        self._owner: dict[int, str] = {}
        self._owned: dict[str, list[int]] = {}
        self._salts: dict[str, str] = {}
        self._scored: tuple[list[ScheduledRow], tuple[str, ...], str, str] | None = None

    def execute(self, schedule: SchedulerOutput, mute: str = "", faulty: str = "") -> ModelRunnerOutput | None:
        """Write the step's tokens, then draw, at once or when the masks come.

        ``mute`` draws none though it had to, ``faulty`` is told as a fault.
        """
        if schedule.generation != self.generation:
            if schedule.generation < self.generation:
                raise Violation(f"generation {schedule.generation} after {self.generation} on one device")
            self.generation = schedule.generation
            self._slots = {}
            self._owner = {}
            self._owned = {}
            self._salts = {}
            self._scored = None
        if self._scored is not None:
            raise Violation(f"step {schedule.step} comes while the one before it waits for its masks")
        for new in schedule.new:
            self._salts[new.request_id] = new.extra.get("salt", b"").decode()
        for request_id in (*schedule.finished, *schedule.preempted):
            for block in self._owned.pop(request_id, ()):
                del self._owner[block]
        rows = self._table.begin_step(schedule)
        for one in rows:
            self._write(one)
        if schedule.constrained:
            self._scored = rows, schedule.constrained, mute, faulty
            return None
        return self._draw_all(rows, {}, mute, faulty)

    def sample(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Draw for the step that was written last, under these masks."""
        if self._scored is None:
            raise ValueError("masks came, and no step waits for any")
        (rows, constrained, mute, faulty), self._scored = self._scored, None
        masks: dict[str, list[int]] = {}
        if grammar is not None:
            size = 4 * grammar.words_per_row
            for index, request_id in enumerate(grammar.request_ids):
                bits = int.from_bytes(grammar.bitmask[size * index : size * (index + 1)], "little")
                masks.setdefault(request_id, []).append(bits)
        if not masks.keys() <= set(constrained):
            raise Violation(f"masks for {list(masks)}, and {constrained} are constrained")
        return self._draw_all(rows, masks, mute, faulty)

    def _draw_all(
        self, rows: list[ScheduledRow], masks: dict[str, list[int]], mute: str, faulty: str
    ) -> ModelRunnerOutput:
        sampled: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprob, ...]] = {}
        prompt_logprobs: dict[str, PromptLogprobs] = {}
        for one in rows:
            request_id, params = one.row.request_id, one.row.params
            if params.prompt_logprobs is not None and one.row.num_computed_tokens + 1 < one.row.num_prompt_tokens:
                prompt_logprobs[request_id] = self._told_of_prompt(one)
            if one.samples and request_id != mute:
                drawn = self._drawn(one, masks.get(request_id, []))
                sampled[request_id] = tuple([token for token, _ in drawn])
                if params.logprobs is not None:
                    logprobs[request_id] = tuple(
                        [TokenLogprob(token_id=token, logprob=logprob_of(total), rank=1) for token, total in drawn]
                    )
        faults = {faulty: "its logits are NaN"} if faulty else {}
        return self._table.finish_step(sampled, faults, logprobs=logprobs, prompt_logprobs=prompt_logprobs)

    def _write(self, one: ScheduledRow) -> None:
        row, size, slots = one.row, self._size, self._slots
        request_id, blocks, start = row.request_id, row.block_ids[0], row.num_computed_tokens
        index, slot = divmod(start, size)
        if start:
            before = slots.get(blocks[index if slot else index - 1], ())
            at = (slot or size) - 1
            if at >= len(before):
                raise Violation(f"{request_id} goes on after position {start - 1}, which nobody wrote")
            word = before[at]
        else:
            word = root_word(self._salts[request_id])
        words = next_words(word, one.token_ids)
        while words:
            block = blocks[index]
            if not slot or self._owner.get(block) != request_id:
                self._claim(request_id, block, slot)
            here, words = words[: size - slot], words[size - slot :]
            slots[block][slot:] = here  # what stood behind it were proposals that did not hold
            index, slot = index + 1, 0

    def _claim(self, request_id: str, block: int, slot: int) -> None:
        owner = self._owner.get(block)
        if owner is not None and owner != request_id:
            raise Violation(f"{request_id} writes into block {block}, which is {owner}'s, and {owner} is live")
        if slot:
            raise Violation(f"{request_id} writes into the middle of block {block}, which is not its own")
        if owner is None:
            self._owner[block] = request_id
            self._owned.setdefault(request_id, []).append(block)
        self._slots[block] = []

    def _drawn(self, one: ScheduledRow, masks: list[int]) -> list[tuple[int, int]]:
        """(token, sum of the words before it), of the row's end and of each proposal that holds."""
        row, drafts, known = one.row, one.draft_token_ids, len(one.row.token_ids)
        if not drafts and not masks:
            total = self._total(row, known)
            return [(self._draw(row, known, total, -1), total)]
        if masks and len(masks) != 1 + len(drafts):
            raise Violation(f"{row.request_id} has {len(masks)} masks for {len(drafts)} proposals")
        drawn: list[tuple[int, int]] = []
        for depth in range(1 + len(drafts)):
            total = self._total(row, known + depth)
            token = self._draw(row, known + depth, total, masks[depth] if masks else -1)
            drawn.append((token, total))
            if drafts[depth : depth + 1] != (token,):
                break
        return drawn

    def _draw(self, row: Row, known: int, total: int, mask: int) -> int:
        params = row.params
        masked: tuple[int, ...] = ()
        key = draw_key(row.seed, row.choice, known) if params.temperature else 0
        if known - row.num_prompt_tokens < params.min_tokens:
            masked = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, EOS)
        if mask != -1:
            masked = (*masked, *[token for token in range(VOCAB) if not mask >> token & 1])
        return drawn_token(total, key, masked)

    def _total(self, row: Row, known: int) -> int:
        """The sum of the words at positions 0 to ``known``, read through the request's blocks, whoever wrote them."""
        slots = self._slots
        words: list[int] = []
        for block in row.block_ids[0][: -(-known // self._size)]:
            if len(words) % self._size:
                break  # the block before has a hole at its end
            words += slots.get(block, ())
        if len(words) < known:
            raise Violation(f"{row.request_id} reads a position before {known} that nobody wrote")
        return sum(words[:known])

    def _told_of_prompt(self, one: ScheduledRow) -> PromptLogprobs:
        row, start = one.row, one.row.num_computed_tokens
        entries = [
            TokenLogprob(token_id=row.token_ids[known], logprob=logprob_of(self._total(row, known)), rank=1)
            for known in range(start + 1, min(start + one.num_tokens + 1, row.num_prompt_tokens))
        ]
        return PromptLogprobs(start=start + 1, entries=tuple(entries))
