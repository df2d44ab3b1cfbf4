"""What one step carries to the runner and back. The scheduler sends differences, never the whole state."""

from __future__ import annotations

from msgspec import Struct, field

from enginebay.messages._requests import FinishReason, SamplingParams, TokenLogprob


class NewRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request that the runner has not seen: everything it must know.

    ``block_ids`` has one tuple per KV-cache group; entry i holds token positions ``i * block_size`` onwards.
    ``num_computed_tokens`` counts the tokens whose keys and values are in the cache already (a prefix hit).
    ``token_ids`` is prompt plus what was committed before (after a restart); ``num_prompt_tokens`` tells them apart.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    block_ids: tuple[tuple[int, ...], ...]
    num_computed_tokens: int
    choice: int = 0
    extra: dict[str, bytes] = field(default_factory=dict)


class RunningRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request that the runner holds and that runs in this step: blocks are appended, one tuple per group.

    ``num_computed_tokens`` is where this step starts; ``new_token_ids`` are committed tokens that this runner did not
    draw itself (pipeline stages before the last one).

    ``draft_token_ids`` are proposals: they stand behind the last known token in this step alone, and
    ``num_scheduled_tokens`` counts them. The runner draws the model's own token after the last known token and after
    each proposal, as if the tokens before it had been drawn one by one, for as long as what it draws is what was
    proposed: it answers with 1 to ``len(draft_token_ids) + 1`` tokens. What the cache holds of a rejected proposal is
    overwritten by a later step, whose ``num_computed_tokens`` says where the request really stands.
    """

    request_id: str
    num_computed_tokens: int
    new_block_ids: tuple[tuple[int, ...], ...] = ()
    new_token_ids: tuple[int, ...] = ()
    draft_token_ids: tuple[int, ...] = ()


class ResumedRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A request that was preempted and runs again: its blocks are *replaced*, its tokens are prompt + committed."""

    request_id: str
    token_ids: tuple[int, ...]
    block_ids: tuple[tuple[int, ...], ...]
    num_computed_tokens: int


class SchedulerOutput(Struct, frozen=True, kw_only=True):
    """What to run in one step.

    ``num_scheduled_tokens`` maps each request of the step to its number of tokens; its order is the order of the
    batch, running requests before new ones. A request draws a token in this step when its computed tokens plus its
    scheduled ones reach the end of what is known of it; one that does not (a partial prefill) answers with none.
    ``finished`` and ``preempted`` are ids whose state the runner drops or parks before it looks at the rest; each that
    was announced as new is told as finished once, when it has ended, and no other.
    ``constrained`` are requests of this step that draw under a grammar. Where there are any, the runner keeps the
    scores, ``execute_model`` answers None, and ``sample_tokens`` with their masks comes before the next
    ``execute_model``. ``annex`` is what plugins carry, by their names: 1 MiB in all.
    """

    step: int
    generation: int = 0
    new: tuple[NewRequest, ...] = ()
    running: tuple[RunningRequest, ...] = ()
    resumed: tuple[ResumedRequest, ...] = ()
    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    annex: dict[str, bytes] = field(default_factory=dict)
    constrained: tuple[str, ...] = ()

    @property
    def num_draft_tokens(self) -> int:
        """Proposals of the whole batch."""
        return sum(len(entry.draft_token_ids) for entry in self.running)

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the whole batch."""
        return sum(self.num_scheduled_tokens.values())


class GrammarOutput(Struct, frozen=True, kw_only=True):
    """Which tokens each constrained request may draw: packed bits, 32 token ids a word, one row per request id.

    A request with proposals stands once for each position that is drawn (one more than its proposals), in their
    order: row j is what may follow its known tokens and the first j proposals.
    """

    request_ids: tuple[str, ...] = ()
    bitmask: bytes = b""
    words_per_row: int = 0


class PromptLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of one request's prompt tokens at positions ``start``, ``start + 1``, …"""

    start: int
    entries: tuple[TokenLogprob, ...] = ()


class ModelRunnerOutput(Struct, frozen=True, kw_only=True):
    """What the runner drew: ``sampled_token_ids[i]`` belongs to ``request_ids[i]``; empty for a partial prefill.

    ``faults`` maps a request id to what went wrong with it alone (NaN logits, say): it fails, the step stands.
    ``logprobs`` has, for each request that asked, one entry per token drawn. ``prompt_logprobs`` has, for each request
    that asked (its choice 0), what this step computed of them: entry i belongs to the prompt token at position
    ``start + i``, and of a step that computes tokens from ``c`` on ``start`` is ``c + 1``.
    """

    request_ids: tuple[str, ...] = ()
    sampled_token_ids: tuple[tuple[int, ...], ...] = ()
    faults: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[str, PromptLogprobs] = field(default_factory=dict)
    annex: dict[str, bytes] = field(default_factory=dict)


class Committed(Struct, frozen=True, kw_only=True):
    """What the core made of a runner's output: the tokens that now exist, and who ended and why.

    The scheduler learns of tokens from here alone. A request of the step that is in neither map drew nothing.
    """

    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    finished: dict[str, FinishReason] = field(default_factory=dict)
