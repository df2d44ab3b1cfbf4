"""What one can ask of ``LLM`` and ``AsyncLLM``: choices, log-probabilities, options; and the errors of bad requests."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from enginebay import LLM, AsyncLLM, Choice, Completion, SamplingParams
from enginebay.engine.admission.admit import AdmissionLimits, Ask, validate
from enginebay.engine.front.answers import completion
from enginebay.engine.front.front import Front
from enginebay.errors import DuplicateRequest, InvalidRequest, RequestTooLong, UnknownRequest
from enginebay.interfaces import Options
from enginebay.messages import FinishReason, RequestOutput, Usage
from support.fake_engine import EOS
from support.fake_engines import Installed
from support.fake_logprobs import entry

FEW = SamplingParams(max_tokens=4)
HOT = SamplingParams(max_tokens=9, temperature=1.0, n=3)


def test_a_completion_has_all_choices_and_is_the_first(llm: LLM) -> None:
    one, two = llm.generate(["say:no %", "say:one"], [HOT, FEW])
    assert [(choice.index, choice.text, choice.finish_reason) for choice in one.choices] == [
        (0, "no 0", FinishReason.STOP),
        (1, "no 1", FinishReason.STOP),
        (2, "no 2", FinishReason.STOP),
    ]
    assert (one.text, one.finish_reason, one.token_ids) == ("no 0", FinishReason.STOP, (*b"no 0", EOS))
    assert (one.usage, one.error, one.stop_reason) == (Usage(prompt_tokens=8, completion_tokens=15), None, None)
    assert [choice.text for choice in two.choices] == ["one"]
    assert (one.logprobs, one.prompt_logprobs) == (None, None)
    answers = llm.chat([{"role": "user", "content": "say:%"}], HOT)
    assert [choice.text for choice in answers[0].choices] == ["0", "1", "2"]


def test_log_probabilities_of_answer_and_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, logprobs=2, prompt_logprobs=1, n=2, temperature=1.0)
    (answer,) = llm.generate("say:ab%", params)
    assert answer.logprobs == tuple(entry(token, 7 + i, 2) for i, token in enumerate(b"ab0"))
    assert answer.choices[1].logprobs == tuple(entry(token, 7 + i, 2) for i, token in enumerate(b"ab1"))
    assert answer.prompt_logprobs == (None, *(entry(token, i, 1) for i, token in enumerate(b"say:ab%") if i))
    assert llm.generate("x", SamplingParams(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs == (None,)


def test_a_choice_that_failed_is_told() -> None:
    bad = Choice(index=1, text="", token_ids=(), finish_reason=FinishReason.ERROR, error="logits are NaN")
    good = Choice(index=0, text="a", token_ids=(97,), finish_reason=FinishReason.STOP)
    both = Completion(request_id="r", prompt="p", prompt_token_ids=(1,), choices=(good, bad), usage=Usage())
    assert (both.error, both.text) == ("logits are NaN", "a")


def test_prompt_log_probabilities_are_whole_or_none(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, prompt_logprobs=1)
    for prompt, options in (("fault", {}), ("late", {"timeout": 1e-6})):
        (answer,) = llm.generate(prompt, params, **options)  # type: ignore[arg-type]  # mypy sees no option's type
        assert answer.error is not None
        assert answer.prompt_logprobs is None


def test_what_is_no_way_to_tell_errors(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match='errors is "raise" or "return", not \'bogus\''):
        llm.generate("a", FEW, errors="bogus")  # type: ignore[arg-type]  # a slip


def test_parameters_that_are_a_class(llm: LLM) -> None:
    said = "not the class SamplingParams itself"
    wrong: Any = SamplingParams
    for call in (
        lambda: llm.generate("a", wrong),
        lambda: llm.generate(["a"], [wrong]),
        lambda: llm.stream("a", wrong),
        lambda: llm.stream([1], wrong),
        lambda: llm.chat([{"role": "user", "content": "a"}], wrong),
    ):
        with pytest.raises(InvalidRequest, match=said):
            call()


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([104, 99999], "token 1 is 99999, outside the model's vocabulary (0 to "),
        ([-1], "token 0 is -1, outside the model's vocabulary (0 to "),
        ([2**70], f"token 0 is {2**70}, outside the model's vocabulary (0 to "),
        ("ab", "token_ids must be a list of token ids: 'str' object cannot be interpreted as an integer"),
        ([1.5], "token_ids must be a list of token ids: 'float' object cannot be interpreted as an integer"),
        (3, "token_ids must be a list of token ids: 'int' object is not iterable"),
    ],
)
def test_what_is_no_token_is_not_decoded(llm: LLM, token_ids: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.decode(token_ids)
    assert caught.value.param == "token_ids"
    assert str(caught.value).startswith(message)
    assert (llm.decode([104, 105]), llm.decode([])) == ("hi", "")


def test_choices_stand_in_their_order_whichever_ended_first() -> None:
    ask = Ask(request_id="r", prompt_token_ids=(1,), params=HOT)
    used = Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3, recomputed_tokens=4, preemptions=5)
    stop = FinishReason.STOP
    ended = [
        RequestOutput(request_id="r", offset=0, choice=choice, text=f"no {choice}", finish_reason=stop, usage=used)
        for choice in (2, 0, 1)
    ]
    answer = completion(ask, "p", ended)
    assert [choice.text for choice in answer.choices] == ["no 0", "no 1", "no 2"]
    assert answer.usage == Usage(
        prompt_tokens=3, completion_tokens=6, cached_tokens=9, recomputed_tokens=12, preemptions=15
    )


def test_a_stream_of_choices_says_of_which_each_delta_is(llm: LLM) -> None:
    stream = llm.stream("say:no %", HOT)
    texts: dict[int, str] = {}
    ends = []
    for output in stream:
        texts[output.choice] = texts.get(output.choice, "") + output.text
        ends += [output.choice] if output.finish_reason is not None else []
    assert texts == {0: "no 0", 1: "no 1", 2: "no 2"}
    assert sorted(ends) == [0, 1, 2]
    assert [choice.text for choice in stream.completion().choices] == ["no 0", "no 1", "no 2"]


def test_a_stream_can_be_read_to_its_end_at_once(llm: LLM) -> None:
    stream = llm.stream("say:hello", SamplingParams(logprobs=0))
    next(stream)
    answer = stream.completion()
    assert (answer.text, len(answer.logprobs or ()), answer.usage.completion_tokens) == ("hello", 6, 6)
    with llm.stream("a", SamplingParams(max_tokens=400)) as closed:
        pass
    with pytest.raises(UnknownRequest, match="was closed before its end"):
        closed.completion()


def asks_of(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What is sent to the engine from now on."""
    seen: list[Ask] = []
    checked = Front._checked

    def spy(self: Front, *arguments: Any) -> Any:
        request = checked(self, *arguments)
        seen.append(request.ask)
        return request

    monkeypatch.setattr(Front, "_checked", spy)
    return seen


def test_options_are_one_for_all_or_one_each(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asks_of(llm, monkeypatch)
    llm.generate(
        ["a", "b"], FEW, priority=[3, -1], tenant="t", timeout=(9, None), cache_salt="s", extra=[{"p": b"1"}, {}]
    )
    got = [(ask.priority, ask.tenant, ask.timeout, ask.cache_salt, ask.extra) for ask in seen]
    assert got == [(3, "t", 9.0, "s", {"p": b"1"}), (-1, "t", None, "s", {})]
    list(llm.stream("a", FEW, request_id="mine", priority=2, extra={"p": b"2"}))
    assert (seen[-1].request_id, seen[-1].priority, seen[-1].extra) == ("mine", 2, {"p": b"2"})
    list(llm.chat_stream([{"role": "user", "content": "a"}], FEW, tenant="u"))
    assert seen[-1].tenant == "u"
    llm.chat([{"role": "user", "content": "a"}], FEW, cache_salt="v")
    assert seen[-1].cache_salt == "v"


def test_a_timeout_ends_a_request_with_an_error(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.02)) as slow:
        late, fine = slow.generate(["a", "b"], [SamplingParams(max_tokens=400), FEW], timeout=[0.1, None])
    assert (late.finish_reason, late.error, fine.error) == (FinishReason.ERROR, "deadline", None)


CHAT = [{"role": "user", "content": "x" * 70_000}]
BAD: dict[str, tuple[Callable[[LLM], Any], type[InvalidRequest], str, str]] = {
    "empty prompt": (
        lambda llm: llm.generate("", FEW),
        InvalidRequest,
        "prompt",
        "the prompt is empty; it must have at least one token",
    ),
    "over-long": (
        lambda llm: llm.generate("x" * 600, FEW),
        RequestTooLong,
        "prompt",
        (
            "the prompt has 600 tokens, and a request may have 512 with its output (max_model_len): shorten the prompt "
            "to 511 tokens or fewer"
        ),
    ),
    "out of the vocabulary": (
        lambda llm: llm.generate([[1, 258]], FEW),
        InvalidRequest,
        "prompt",
        "prompt 0: prompt token 1 is 258, outside the model's vocabulary (0 to 257)",
    ),
    "NaN": (
        lambda llm: llm.generate("a", SamplingParams(temperature=float("nan"))),
        InvalidRequest,
        "temperature",
        "temperature must be a finite number, 0 or more, not nan",
    ),
    "10 MB": (
        lambda llm: llm.stream("x" * 10_000_000, FEW),
        RequestTooLong,
        "prompt",
        (
            "the prompt has 10000000 bytes or more, and at most 65536 are taken, 128 for each of the 512 tokens of a "
            "request (max_model_len): shorten it, or set truncate_prompt_tokens to keep its end"
        ),
    ),
    "a long conversation": (
        lambda llm: llm.chat(CHAT, FEW),
        RequestTooLong,
        "prompt",
        (
            "the prompt has 70004 bytes or more, and at most 65536 are taken, 128 for each of the 512 tokens of a "
            "request (max_model_len): shorten it, or set truncate_prompt_tokens to keep its end"
        ),
    ),
    "unknown option": (
        lambda llm: llm.generate("a", FEW, priorty=1),
        InvalidRequest,
        "priorty",
        (
            "unknown request option 'priorty'. Did you mean 'priority'? Known options: adapter, cache_salt, extra, "
            "priority, request_id, tenant, timeout, traceparent; how tokens are drawn is said in SamplingParams"
        ),
    ),
    "unknown option of a stream": (
        lambda llm: llm.stream("a", FEW, temperature=1),
        InvalidRequest,
        "temperature",
        (
            "unknown request option 'temperature'. Known options: adapter, cache_salt, extra, "
            "priority, request_id, tenant, timeout, traceparent; how tokens are drawn is said in SamplingParams"
        ),
    ),
    "too few options": (
        lambda llm: llm.generate(["a", "b"], FEW, priority=[1]),
        InvalidRequest,
        "priority",
        "there are 2 prompts and 1 values of priority: give one for all, or one each",
    ),
    "unserved": (
        lambda llm: llm.generate("a", SamplingParams(min_p=0.1)),
        InvalidRequest,
        "min_p",
        "runner 'fake' 1.0 does not serve min_p; it serves: grammar, logprobs, min_tokens, n, prompt_logprobs, seed",
    ),
    "extra that is no JSON": (
        lambda llm: llm.generate("a", FEW, extra={"fake": b"{"}),
        InvalidRequest,
        "extra",
        (
            "extra for 'fake': Invalid JSON: EOF while parsing an object at line 1 column 1; it takes JSON with mood, "
            "level"
        ),
    ),
    "extra of another kind": (
        lambda llm: llm.generate("a", FEW, extra={"fake": b'{"level": 11}'}),
        InvalidRequest,
        "extra",
        "extra for 'fake': 'level': Input should be less than or equal to 9; it takes JSON with mood, level",
    ),
    "extra that is unknown": (
        lambda llm: llm.generate("a", FEW, extra={"fake": b'{"moood": "x"}'}),
        InvalidRequest,
        "extra",
        "extra for 'fake': 'moood': Extra inputs are not permitted; it takes JSON with mood, level",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_has_its_own_error_and_the_others_go_on(llm: LLM, name: str) -> None:  # E4
    ask, kind, param, message = BAD[name]
    other = llm.stream("say:going on")
    with pytest.raises(InvalidRequest) as caught:
        ask(llm)
    assert (type(caught.value), caught.value.param, str(caught.value)) == (kind, param, message)
    assert "".join(output.text for output in other) == "going on"
    assert llm.stats().unfinished == 0


@pytest.mark.parametrize("prompt", ["\ud800", "a\udfffb", "x" * 1000 + "\udc00"])
def test_text_that_is_none_is_refused(llm: LLM, prompt: str) -> None:  # E4
    for ask in (llm.generate, lambda text: llm.chat([{"role": "user", "content": text}])):
        with pytest.raises(InvalidRequest) as caught:
            ask(prompt)
        assert "surrogate" in str(caught.value)
        assert str(caught.value).isprintable()


def test_a_truncated_prompt_runs_whatever_its_length(llm: LLM) -> None:
    params = SamplingParams(max_tokens=9, truncate_prompt_tokens=5)
    (answer,) = llm.generate("x" * 200_000 + "say:y", params)
    assert (answer.text, bytes(answer.prompt_token_ids)) == ("y", b"say:y")


def test_extra_reaches_the_plugin_as_it_was_sent(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = asks_of(llm, monkeypatch)
    extra = {"fake": b'{ "mood": "merry" }', "nobody": b"\xff"}
    assert llm.generate("a", FEW, extra=extra)[0].error is None
    assert seen[-1].extra == extra


class Explosive(Options):
    """Its validation raises what pydantic does not catch."""

    def model_post_init(self, context: Any) -> None:
        raise ZeroDivisionError("mine\nand more")


def test_a_plugin_whose_own_check_fails_hurts_nobody_else() -> None:
    limits = AdmissionLimits(
        vocab_size=9,
        runner="r",
        features=frozenset(),
        check_fits=lambda prompt, most: None,
        request_extras=(("bomb", Explosive),),
    )
    with pytest.raises(InvalidRequest) as caught:
        validate(Ask(request_id="r", prompt_token_ids=(1,), extra={"bomb": b"{}"}), limits)
    assert str(caught.value) == "extra for 'bomb': ZeroDivisionError: mine and more; it takes JSON with no fields"
    validate(Ask(request_id="r", prompt_token_ids=(1,), extra={"other": b"{}"}), limits)


def eventually(llm: LLM, free: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not free():
        assert time.monotonic() < until, llm.stats()
        time.sleep(0.005)


def test_a_client_that_goes_away_frees_the_blocks_of_all_choices_within_one_step(fake: Installed) -> None:  # E6
    long = SamplingParams(max_tokens=400, temperature=1.0, n=3)
    with LLM(fake.config(step_seconds=0.05)) as llm:
        other = llm.stream("b", SamplingParams(max_tokens=30))
        stream = llm.stream("a", long)
        next(stream)
        before = llm.stats()
        assert before.unfinished == 4
        stream.close()
        after = llm.stats()  # asked after the abort, and answered between two steps
        assert (after.unfinished, after.finished) == (1, 3)
        assert after.steps <= before.steps + 1
        other.completion()
        eventually(llm, lambda: llm.stats().scheduler.num_free_blocks == 256)


def test_a_cancelled_task_frees_the_blocks_of_all_choices_within_one_step(fake: Installed) -> None:  # E6
    long = SamplingParams(max_tokens=400, temperature=1.0, n=3)

    async def main() -> None:
        async with AsyncLLM(fake.config(step_seconds=0.05)) as llm:
            begun = asyncio.Event()

            async def read() -> None:
                async for _ in llm.generate("a", long):
                    begun.set()

            task = asyncio.create_task(read())
            await begun.wait()
            before = await llm.stats()
            task.cancel()
            await asyncio.wait([task])
            after = await llm.stats()
            assert (before.unfinished, after.unfinished) == (3, 0)
            assert after.steps <= before.steps + 1

    asyncio.run(main())


def test_async_streams_of_choices_end_when_all_have(fake: Installed) -> None:
    async def main() -> list[RequestOutput]:
        async with AsyncLLM(fake.config()) as llm:
            stream = llm.generate("say:no %", HOT, priority=1, tenant="t", request_id="mine")
            outputs = [output async for output in stream]
            with pytest.raises(InvalidRequest, match="unknown request option 'prio'"):
                [output async for output in llm.generate("a", FEW, prio=1)]  # type: ignore[call-arg]  # a slip
            with pytest.raises(InvalidRequest, match="n must be an integer from 1 to 16, not 99"):
                [output async for output in llm.generate("a", SamplingParams(n=99, temperature=1.0))]
            return outputs

    outputs = asyncio.run(main())
    texts = {n: "".join(output.text for output in outputs if output.choice == n) for n in range(3)}
    assert texts == {0: "no 0", 1: "no 1", 2: "no 2"}
    assert sorted(output.choice for output in outputs if output.finish_reason is not None) == [0, 1, 2]
    assert {output.request_id for output in outputs} == {"mine"}


def test_a_long_text_is_tokenized_off_the_event_loop(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # E4
    threads: list[int] = []
    checked = Front._checked

    def spy(self: Front, *arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return checked(self, *arguments)

    monkeypatch.setattr(Front, "_checked", spy)

    async def main() -> None:
        async with AsyncLLM(fake.config()) as llm:
            assert [output async for output in llm.generate("x" * 400, FEW)]
            with pytest.raises(RequestTooLong):
                [output async for output in llm.generate("x" * 10_000_000, FEW)]

    asyncio.run(main())
    assert threads
    assert threading.get_ident() not in threads


def test_an_id_that_a_choice_of_another_has_is_told_to_whoever_asks(fake: Installed) -> None:  # E1
    with LLM(fake.config(step_seconds=0.01)) as llm:
        stream = llm.stream("say:going on", request_id="a#1")
        with pytest.raises(DuplicateRequest) as caught:
            next(llm.stream("b", HOT, request_id="a"))
        assert caught.value.param == "request_id"
        assert str(caught.value) == (
            "request id 'a#1', which 3 choices of 'a' need, is in use by an unfinished request: choose another, or "
            "abort that one"
        )
        assert stream.completion().text == "going on"
        assert llm.stream("say:b%", HOT, request_id="a").completion().text == "b0"


def test_many_refusals_share_no_growing_traceback(llm: LLM) -> None:  # E8
    def refused() -> InvalidRequest:
        with pytest.raises(InvalidRequest) as caught:
            llm.generate("a", SamplingParams(n=99))
        return caught.value

    def depth(error: BaseException) -> int:
        count, trace = 0, error.__traceback__
        while trace is not None:
            count, trace = count + 1, trace.tb_next
        return count

    first = refused()
    assert {depth(refused()) for _ in range(50)} == {depth(first)}
    tracemalloc.start()
    try:
        for _ in range(50):
            refused()
        gc.collect()  # an error and the frames that it passed refer to each other
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            refused()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
