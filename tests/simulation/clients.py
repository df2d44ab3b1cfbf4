"""The clients: they ask, cancel and read as the plan says, and hold what they get against what they must get."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.sinks import PendingDelta
from enginebay.messages import FinishReason, RequestOutput, SamplingParams
from simulation.grammars import SHAPE
from simulation.plan import VOCAB, Want
from simulation.reference import Answer, answer
from simulation.workers import Violation

__all__ = ["Clients"]


class _Stream:
    """What the client of one choice was sent, and what of it was read."""

    __slots__ = (
        "aborted",
        "deadline",
        "error",
        "expected",
        "finish",
        "logprobs",
        "num_sent",
        "pending",
        "prompt_logprobs",
        "row_id",
        "text",
        "tokens",
    )

    def __init__(self, row_id: str, expected: Answer, deadline: float) -> None:
        self.row_id = row_id
        self.expected = expected
        self.deadline = deadline
        self.aborted = False
        self.finish: FinishReason | None = None
        self.error: str | None = None
        self.num_sent = 0
        self.pending = PendingDelta()
        self.tokens: list[int] = []
        self.text = ""
        self.logprobs: list[float] = []
        self.prompt_logprobs: list[float] = []


class Clients:
    """All clients of one run. Streams are kept by (client's id, choice)."""

    def __init__(self, core: EngineCore, told: Callable[[str, RequestOutput], None]) -> None:
        """``told``: called with the row of each output."""
        self._core, self._told = core, told
        self.streams: dict[tuple[str, int], _Stream] = {}
        self._ready: list[_Stream] = []
        self._guesses: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self.num_requests = 0
        self.num_cancelled = 0
        """Deltas that found an earlier one not read yet: a reader was slow."""

    def ask(self, request_id: str, want: Want) -> None:
        """A request comes."""
        params = SamplingParams(
            max_tokens=want.max_tokens,
            temperature=want.temperature,
            seed=want.seed,
            n=want.n,
            stop=want.stop,
            stop_token_ids=want.stop_token_ids,
            ignore_eos=want.ignore_eos,
            min_tokens=want.min_tokens,
            logprobs=0 if want.logprobs else None,
            prompt_logprobs=0 if want.prompt_logprobs else None,
            structured=SHAPE if want.shaped else None,
        )
        self._core.add_request(
            Ask(
                request_id=request_id,
                prompt_token_ids=want.prompt,
                params=params,
                priority=want.priority,
                timeout=want.timeout,
                cache_salt=want.salt,
                extra={"salt": want.salt.encode()} if want.salt else {},
            ),
            validated=True,
        )
        self.num_requests += 1
        for row in self._core._requests.ledger.of_client(request_id):
            expected = answer(want, row.seed, row.choice)
            deadline = math.inf if row.deadline is None else row.deadline
            self.streams[request_id, row.choice] = _Stream(row.request_id, expected, deadline)
            self._guesses.setdefault(want.prompt, []).append(expected.token_ids)

    def propose(self, prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
        """A guess at the answer to this prompt, now and then a wrong or a short one."""
        done = len(output)
        for token_ids in self._guesses[tuple(prompt)]:
            if token_ids[:done] == tuple(output):
                guess = token_ids[done : done + at_most]
                if done % 3 == 0 and guess:
                    return (*guess[:-1], (guess[-1] + 1) % VOCAB)
                return guess[: 1 + done % 3]
        return ()

    def cancel(self, request_ids: list[str]) -> None:
        """Clients go away."""
        self._core.abort(request_ids)
        for (request_id, _), stream in self.streams.items():
            if request_id in request_ids and stream.finish is None:
                stream.aborted = True
                self.num_cancelled += 1

    def receive(self, outputs: list[RequestOutput], now: float) -> None:
        """What a step put out waits for its readers, merged. Nothing follows an end, and only an end a cancel."""
        for output in outputs:
            stream = self.streams[output.request_id, output.choice]
            if stream.finish is not None:
                raise Violation(f"{output.request_id} gets an output after its end")
            if stream.aborted and (output.token_ids or output.finish_reason is not FinishReason.ABORT):
                raise Violation(f"{output.request_id} was aborted, and gets {output}")
            if output.offset != stream.num_sent:
                raise Violation(f"{output.request_id}: offset {output.offset} after {stream.num_sent} tokens")
            self._told(stream.row_id, output)
            if output.error == "deadline" and now < stream.deadline:
                raise Violation(f"{output.request_id} ends at {now} by its deadline, which is {stream.deadline}")
            if not stream.pending:
                self._ready.append(stream)
            stream.pending.add(output)
            stream.num_sent += len(output.token_ids)
            stream.finish, stream.error = output.finish_reason, output.error

    def read(self) -> None:
        """The readers take all that waits: gapless, and what the request had to yield."""
        ready, self._ready = self._ready, []
        for stream in ready:
            delta = stream.pending.take()
            request_id, expected, offset = stream.row_id, stream.expected, len(stream.tokens)
            if delta.offset != offset:
                raise Violation(f"{request_id}: offset {delta.offset}, and {offset} tokens were read")
            if delta.token_ids != expected.token_ids[offset : offset + len(delta.token_ids)]:
                raise Violation(f"{request_id}: {delta.token_ids} from {offset} on, and not as {expected.token_ids}")
            stream.tokens += delta.token_ids
            stream.text += delta.text
            if delta.logprobs:
                stream.logprobs += [entry.logprob for entry in delta.logprobs]
            if delta.prompt_logprobs:
                stream.prompt_logprobs += [entry.logprob for entry in delta.prompt_logprobs]

    def check_end(self, faulty: set[str], *, died: bool) -> None:
        """Each request ended once, and as it had to; ``faulty`` are the rows that the runner failed.

        ``died``: the engine has, and all that had not ended by then has ended with it.
        """
        for (request_id, choice), stream in self.streams.items():
            if stream.finish in (FinishReason.STOP, FinishReason.LENGTH):
                got = Answer(
                    tuple(stream.tokens),
                    stream.text,
                    stream.finish.value,
                    tuple(stream.logprobs),
                    tuple(stream.prompt_logprobs),
                )
                if got != stream.expected:
                    raise Violation(f"{request_id}/{choice} got {got} instead of {stream.expected}")
            elif stream.finish is None:
                if died:
                    continue
                raise Violation(f"{request_id}/{choice} never ended")
            elif (
                not stream.aborted
                and stream.error != "deadline"
                and stream.row_id not in faulty
                and not (stream.error or "").startswith("the workers were lost")  # which Lives has judged
            ):
                raise Violation(f"{request_id}/{choice} ended with {stream.finish}: {stream.error}")

    @property
    def num_tokens(self) -> int:
        """Tokens that were committed."""
        return sum([stream.num_sent for stream in self.streams.values()])
