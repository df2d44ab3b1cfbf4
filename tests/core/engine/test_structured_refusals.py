"""A shape that cannot be compiled is its client's own error, however it was asked for, and no other's."""  # S15

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from enginebay import LLM, AsyncLLM, FinishReason, SamplingParams, StructuredOutput
from enginebay.errors import InvalidRequest
from support.fake_engines import Installed
from support.served import Serving

BAD = StructuredOutput(regex="(a")
WHY = (
    'structured.regex cannot be used: invalid regex "(a" (in regex): regex parse error: error: unclosed group; '
    "write it in the syntax of Rust's regex, and simpler where it is too large"
)


def params(shape: StructuredOutput | None = None, n: int = 1, max_tokens: int = 4) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, structured=shape, n=n, temperature=float(n > 1))


@pytest.fixture(params=["in this process", "in another"])
def either(request: pytest.FixtureRequest, fake: Installed) -> Iterator[LLM]:
    """An engine of one's own, and one behind a socket."""
    if request.param == "in this process":
        with LLM(fake.config()) as llm:
            yield llm
    else:
        serving: Serving = request.getfixturevalue("serving")
        with LLM.connect(serving.address) as llm:
            yield llm


def test_it_is_raised_or_told_beside_the_answers(either: LLM) -> None:
    with pytest.raises(InvalidRequest) as alone:
        either.generate("hi", params(BAD))
    assert (str(alone.value), alone.value.param) == (WHY, "structured.regex")
    many = ["hi", "hi", "hi"]
    shapes = [params(), params(BAD, n=2), params(StructuredOutput(choice=("yes",)))]
    with pytest.raises(InvalidRequest) as batch:
        either.generate(many, shapes)
    assert (str(batch.value), batch.value.param) == (f"prompt 1: {WHY}", "structured.regex")
    free, bad, shaped = either.generate(many, shapes, errors="return")
    assert (free.text, free.error) == ("the ", None)
    assert (shaped.text, shaped.finish_reason) == ("yes", FinishReason.STOP)
    assert [choice.error for choice in bad.choices] == [WHY, WHY]
    assert {choice.finish_reason for choice in bad.choices} == {FinishReason.ERROR}
    with pytest.raises(InvalidRequest, match="unclosed group"):
        list(either.stream("hi", params(BAD, n=2)))
    assert either.stats().unfinished == 0


def test_in_an_event_loop(fake: Installed) -> None:
    async def ask() -> None:
        async with AsyncLLM(fake.config()) as llm:

            async def text(shape: StructuredOutput | None) -> str:
                return "".join([output.text async for output in llm.generate("hi", params(shape))])

            told = await asyncio.gather(text(BAD), text(None), text(BAD), return_exceptions=True)
            assert [str(one) for one in told] == [WHY, "the ", WHY]
            assert told[0] is not told[2], "each has an error of its own"

    asyncio.run(ask())


def test_its_id_is_free_again(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        with pytest.raises(InvalidRequest):
            list(llm.stream("hi", params(BAD, n=2), request_id="mine"))
        assert "".join(output.text for output in llm.stream("hi", params(), request_id="mine")) == "the "


def test_workers_are_not_told_the_shape(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.fake_engine import FakeRunner

    told: list[StructuredOutput | None] = []
    original = FakeRunner.execute_model

    def execute(self: FakeRunner, output: object) -> object:
        told.extend(new.params.structured for new in output.new)  # type: ignore[attr-defined]  # a SchedulerOutput
        return original(self, output)  # type: ignore[arg-type]  # see above

    monkeypatch.setattr(FakeRunner, "execute_model", execute)
    with LLM(fake.config()) as llm:
        llm.generate(["hi", "hi"], [params(StructuredOutput(choice=("yes",))), params()])
    assert sorted(told, key=str) == [None, StructuredOutput()]
