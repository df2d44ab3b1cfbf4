"""What engines are asked while they are harmed, and what is wrong with what they answer."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay import LLM, EnginebayError, FinishReason, RequestOutput, SamplingParams, StructuredOutput

__all__ = ["Ask", "Load", "Tally", "pool"]

_SHAPES = (
    StructuredOutput(regex="[a-f]{5,30}"),
    StructuredOutput(choice=("yes", "no", "perhaps tomorrow")),
    StructuredOutput.of_schema(
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
    ),
)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, the same each time it is asked."""

    prompt: Sequence[int]
    params: SamplingParams


def pool(size: int = 24) -> list[Ask]:
    """Greedy and seeded requests, some with two choices, and requests for answers of a shape."""
    stream, asks = random.Random(5), []
    for number in range(size):
        prompt = [stream.randrange(1, 250) for _ in range(stream.choice([1, 9, 40, 120]))]
        most: dict[str, Any] = {"max_tokens": stream.choice([1, 17, 60, 120])}
        match number % 4:
            case 0:
                params = SamplingParams(**most)
            case 1:
                params = SamplingParams(temperature=1.0, seed=number, **most)
            case 2:
                shape = _SHAPES[number // 4 % len(_SHAPES)]
                params = SamplingParams(temperature=number % 8 / 4, seed=number, max_tokens=120, structured=shape)
            case _:
                params = SamplingParams(temperature=0.7, seed=number, n=2, **most)
        asks.append(Ask(prompt=prompt, params=params))
    return asks


@dataclass(kw_only=True)
class Tally:
    """What was wrong, in numbers, and the first of it in words."""

    requests: int = 0
    lost: int = 0
    duplicated: int = 0
    different: int = 0
    problems: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        if len(self.problems) < 5:
            self.problems.append(what)


class Load:
    """Asks again and again, from several threads. ``expected`` has the answer to each request of the pool."""

    def __init__(self, asks: Sequence[Ask], tally: Tally) -> None:
        self._asks = asks
        self._tally = tally
        self._lock = threading.Lock()
        self._next = 0
        self.expected: list[Any] = []

    def learn(self, llm: LLM, file: Path) -> None:
        """Write down what an undisturbed engine answers."""
        answers: dict[int, Any] = {}
        self._each(llm, lambda: self._next >= len(self._asks), answers.__setitem__)
        made = file.with_suffix(".new")
        made.write_text(json.dumps([answers[index] for index in range(len(self._asks))]))
        made.replace(file)

    def run(self, llm: LLM, enough: Callable[[], bool]) -> None:
        """Ask until it is enough, and compare each answer."""
        self._next = 0
        self._each(llm, enough, self._compare)

    def _each(self, llm: LLM, enough: Callable[[], bool], take: Callable[[int, Any], None]) -> None:
        def work() -> None:
            while not enough():
                with self._lock:
                    index, self._next = self._next % len(self._asks), self._next + 1
                try:
                    answer = self._ask(llm, index)
                except EnginebayError as error:
                    with self._lock:
                        self._tally.lost += 1
                        self._tally.note(f"request {index}: {type(error).__name__}: {error}")
                    return
                with self._lock:
                    take(index, answer)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask(self, llm: LLM, index: int) -> Any:
        """Each choice's tokens, text and end."""
        ask = self._asks[index]
        heard: dict[int, Choice] = {}
        for delta in llm.stream(ask.prompt, ask.params):
            heard.setdefault(delta.choice, Choice()).hear(delta, self._tally, index)
        with self._lock:
            self._tally.requests += 1
            ends = [one.finish for one in heard.values() if one.finish not in ("", FinishReason.ERROR.value)]
            if len(ends) != ask.params.n:
                self._tally.lost += 1
                self._tally.note(f"request {index}: {len(ends)} of {ask.params.n} choices ended: {heard}")
        return [[one.tokens, one.text, one.finish] for _, one in sorted(heard.items())]

    def _compare(self, index: int, answer: Any) -> None:
        if answer != self.expected[index]:
            self._tally.different += 1
            self._tally.note(f"request {index}: {answer} instead of {self.expected[index]}")


@dataclass(kw_only=True)
class Choice:
    """What came of one choice."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""

    def hear(self, delta: RequestOutput, tally: Tally, index: int) -> None:
        missing = delta.offset - len(self.tokens)
        if missing or self.finish:
            tally.lost += max(0, missing)
            tally.duplicated += max(0, -missing) + bool(self.finish)
            tally.note(f"request {index}: a delta at {delta.offset} after {len(self.tokens)} tokens ({self.finish})")
        self.tokens += delta.token_ids
        self.text += delta.text
        if delta.finish_reason is not None:
            self.finish = delta.finish_reason.value


def counts(tally: Tally) -> Mapping[str, int]:
    """The numbers alone."""
    return {name: getattr(tally, name) for name in ("requests", "lost", "duplicated", "different")}
