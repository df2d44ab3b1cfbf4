"""A whole engine over the fake runner, driven step by step, for what is exchanged in it while requests run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from enginebay.config import load
from enginebay.engine.admission.admit import Ask
from enginebay.engine.core import EngineCore
from enginebay.engine.startup.assembly import start
from enginebay.engine.startup.plan import plan
from enginebay.messages import ControlDone, FinishReason, RequestOutput, SamplingParams
from enginebay.plugins import PluginHost
from enginebay.runtime import system_runtime
from support.fake_engines import Installed

__all__ = ["LOAD", "Driven"]

LOAD: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("hi", {"max_tokens": 40, "temperature": 0.0}),
    "seeded": ("a prompt of more than one block of sixteen tokens", {"max_tokens": 30, "seed": 7}),
    "said": ("say:that is all", {"max_tokens": 99}),
    "stop": ("hello", {"max_tokens": 60, "stop": ("jumps",)}),
    "two": ("say:choice %", {"max_tokens": 20, "n": 2, "temperature": 1.0}),
    "logprobs": ("well", {"max_tokens": 25, "logprobs": 2, "prompt_logprobs": 1}),
}
"""Requests by id: a prompt, and sampling parameters."""

_UNDISTURBED: dict[tuple[str, ...], dict[str, Any]] = {}


class Driven:
    """An engine of the fake runner without a thread; ``step`` checks that no token is lost or comes twice."""

    def __init__(self, fake: Installed, *sets: str, **options: Any) -> None:
        host = PluginHost()
        made = plan(load(fake.config(**options), sets=sets, environ={}), host)
        self.core: EngineCore = start(made, system_runtime(seed=0), host)
        self.tokens: dict[str, list[int]] = {}
        self.texts: dict[str, str] = {}
        self.num_logprobs: dict[str, int] = {}
        self.last: dict[str, RequestOutput] = {}

    def add(self, request_id: str, prompt: str = "hi", priority: int = 0, **params: Any) -> None:
        ids = tuple(prompt.encode())
        params.setdefault("max_tokens", 40)
        sampling = SamplingParams(**params)
        self.core.add_request(Ask(request_id=request_id, prompt_token_ids=ids, params=sampling, priority=priority))

    def add_load(self) -> None:
        for number, (request_id, (prompt, params)) in enumerate(LOAD.items()):
            self.add(request_id, prompt, priority=number % 3, **params)

    def step(self) -> None:
        outputs, _ = self.core.step()
        for one in outputs:
            name = f"{one.request_id}/{one.choice}"
            tokens = self.tokens.setdefault(name, [])
            assert one.offset == len(tokens), f"{name}: offset {one.offset}, expected {len(tokens)}"
            assert name not in self.last, f"{name} goes on after its end"
            tokens.extend(one.token_ids)
            self.texts[name] = self.texts.get(name, "") + one.text
            self.num_logprobs[name] = self.num_logprobs.get(name, 0) + len(one.logprobs)
            if one.finish_reason is not None:
                self.last[name] = one

    def run(self, most: int = 2000) -> None:
        for _ in range(most):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"work is left after {most} steps")

    def do(self, command: Any) -> ControlDone:
        return self.core.control(command)

    def told(self) -> dict[str, tuple[list[int], str, int, FinishReason | None]]:
        """All that the clients have, by request and choice."""
        assert sorted(self.tokens) == sorted(self.last), "not all have ended"
        return {
            name: (tokens, self.texts[name], self.num_logprobs[name], self.last[name].finish_reason)
            for name, tokens in self.tokens.items()
        }

    @classmethod
    def undisturbed(cls, make: Callable[..., Driven], *sets: str) -> dict[str, Any]:
        """What the clients of ``LOAD`` have where nothing is exchanged; computed once."""
        if sets not in _UNDISTURBED:
            engine = make(*sets)
            engine.add_load()
            engine.run()
            _UNDISTURBED[sets] = engine.told()
        return _UNDISTURBED[sets]

    def names(self, kinds: Sequence[str] = ("scheduler", "runner", "executor")) -> list[str]:
        return [self.core.in_force[kind] for kind in kinds]
