"""A proposer that knows the simulated model's answers, and is wrong as often as a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from enginebay.messages import StructuredOutput
from enginebay.testing import CoreLoop, Load
from enginebay.testing._sim import expected_tokens

__all__ = ["Guesser", "with_choices_and_shapes"]

_SHAPE = StructuredOutput(regex="[a-z]+")


class Guesser:
    """Give it to a ``CoreLoop`` as ``propose``, and the loop to it as ``loop``.

    ``right``: how likely each guess is right as a whole; ``length``: how many tokens it guesses, None: by lot.
    """

    loop: CoreLoop

    def __init__(self, *, right: float = 1.0, length: int | None = None, seed: int = 0) -> None:
        self._random = Random(seed)
        self._right = right
        self._length = length
        self.calls = 0

    def __call__(self, prompt: Sequence[int], output: Sequence[int], at_most: int) -> tuple[int, ...]:
        self.calls += 1
        assert at_most > 0, "a guess of nothing is asked for"
        length = self._random.randint(0, at_most) if self._length is None else min(self._length, at_most)
        requests = self.loop.requests.values()
        request = next(one for one in requests if one.prompt_token_ids == tuple(prompt))
        guess = expected_tokens(request, self.loop.limits.max_model_len)[len(output) : len(output) + length]
        if guess and self._random.random() >= self._right:
            wrong = self._random.randrange(len(guess))
            guess[wrong] += 1
        return tuple(guess)


def with_choices_and_shapes(load: Load, seed: int) -> Load:
    """The same load in which some requests have several choices, and some a grammar."""
    random = Random(seed)
    for step, requests in load.arrivals.items():
        more = []
        for request in requests:
            if random.random() < 0.2:
                params = msgspec.structs.replace(request.params, structured=_SHAPE)
                request = msgspec.structs.replace(request, params=params)
            others = random.randrange(1, 4) if random.random() < 0.3 else 0
            if others:
                request = msgspec.structs.replace(request, parent_id=request.request_id)
            more.append(request)
            more += [
                msgspec.structs.replace(request, request_id=f"{request.request_id}-{choice}", choice=choice)
                for choice in range(1, others + 1)
            ]
        load.arrivals[step] = more
    return load
