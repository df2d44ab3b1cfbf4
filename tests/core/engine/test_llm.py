"""``LLM`` over a whole engine with the fake runner. E1, E6, E8, the parts of E4 that have no HTTP in them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from enginebay import LLM, SamplingParams
from enginebay.errors import EngineDead, InvalidRequest, RequestTooLong, UnknownRequest, WorkerFailed
from enginebay.messages import FinishReason, Usage
from support.fake_engine import DEFAULT
from support.fake_engines import Installed

FEW = SamplingParams(max_tokens=4)


def eventually(llm: LLM, unfinished: int = 0) -> None:
    """Wait until so many requests are unfinished; fail after 10 s."""
    until = time.monotonic() + 10
    while llm.stats().unfinished != unfinished:
        assert time.monotonic() < until, llm.stats()
        time.sleep(0.005)


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["say:" + "x" * n for n in range(9, 0, -1)]
    answers = llm.generate(prompts)
    assert [answer.text for answer in answers] == ["x" * n for n in range(9, 0, -1)]
    assert [answer.prompt for answer in answers] == prompts
    one = answers[-1]
    assert (one.finish_reason, one.error, one.usage) == (
        FinishReason.STOP,
        None,
        Usage(prompt_tokens=5, completion_tokens=2),
    )
    assert bytes(one.prompt_token_ids) == b"say:x"


def test_prompts_of_token_ids_and_parameters_of_their_own(llm: LLM) -> None:
    answers = llm.generate(["a", list(b"say:b")], [FEW, SamplingParams(max_tokens=1)])
    assert [(a.prompt, a.text) for a in answers] == [("a", "the "), (None, "b")]
    assert llm.generate([]) == []
    assert llm.generate("a", FEW)[0].text == "the "


def test_a_bad_request_is_named_before_any_runs(llm: LLM) -> None:  # E4
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(["a", ""], FEW)
    assert str(caught.value) == "prompt 1: the prompt is empty; it must have at least one token"
    with pytest.raises(RequestTooLong, match="prompt 0: the prompt has 600 tokens"):
        llm.generate(["x" * 600, "b"])
    with pytest.raises(
        InvalidRequest,
        match=(
            r"runner 'fake' 1\.0 does not serve top_k; "
            "it serves: grammar, logprobs, min_tokens, n, prompt_logprobs, seed"
        ),
    ):
        llm.generate("a", SamplingParams(top_k=2))
    with pytest.raises(InvalidRequest, match="there are 2 prompts and 1 sampling parameters"):
        llm.generate(["a", "b"], [FEW])
    with pytest.raises(InvalidRequest, match=r"give a list of prompts: \[\[1, 2, 3\]\]"):
        llm.generate([1, 2, 3])  # type: ignore[list-item]  # what people write
    for wrong in (3, None, {"a"}):
        with pytest.raises(InvalidRequest, match=f"prompts must be a list, not {type(wrong).__name__}"):
            llm.generate(wrong)  # type: ignore[arg-type]  # see above
        with pytest.raises(InvalidRequest, match=f"prompts must be a list, not {type(wrong).__name__}"):
            llm.chat(wrong)  # type: ignore[arg-type]  # see above
    with pytest.raises(InvalidRequest, match="sampling parameters must be SamplingParams, or a list of them, not dict"):
        llm.generate("a", {"max_tokens": 3})  # type: ignore[arg-type]  # see above
    with pytest.raises(InvalidRequest, match="prompt 0: a prompt is text or a list of token ids, not bytes"):
        llm.generate([b"a"])
    with pytest.raises(InvalidRequest, match=r"surrogate"):
        llm.generate("\ud800")
    assert llm.stats().steps == 0


@pytest.mark.parametrize("field", ["max_tokens", "temperature", "top_k", "top_p", "seed"])
@pytest.mark.parametrize("value", [10**400, -(10**400), -(2**64)])
def test_no_number_of_one_prompt_loses_the_batch(llm: LLM, field: str, value: int) -> None:  # E4
    given: dict[str, Any] = {field: value}
    odd = SamplingParams(**given)
    answers = llm.generate(["a", "b", "c"], [FEW, odd, FEW], errors="return")
    assert [answer.text for answer in (answers[0], answers[2])] == ["the ", "the "]
    assert answers[1].error is not None
    with pytest.raises(InvalidRequest, match="prompt 1: "):
        llm.generate(["a", "b", "c"], [FEW, odd, FEW])
    hot = SamplingParams(temperature=2**64, max_tokens=4)  # no integer of 64 bits, but a number all the same
    assert [answer.text for answer in llm.generate(["a", "b"], [FEW, hot])] == ["the ", "the "]


def test_what_is_refused_can_be_told_beside_the_answers(llm: LLM) -> None:  # E4
    answers = llm.generate(["", "a", "fault"], FEW, errors="return")
    assert [(a.finish_reason, a.error, a.text) for a in answers] == [
        (FinishReason.ERROR, "the prompt is empty; it must have at least one token", ""),
        (FinishReason.LENGTH, None, "the "),
        (FinishReason.ERROR, "logits are NaN", ""),
    ]


def test_chat_uses_the_models_template(llm: LLM) -> None:
    one = [{"role": "user", "content": "say:hi"}]
    answers = llm.chat([one, [{"role": "user", "content": "say:<|im_end|>"}]])
    assert [answer.text for answer in answers] == ["hi", "<|im_end|>"]
    assert llm.chat(one)[0].text == "hi"
    assert llm.has_chat_template
    assert "".join(output.text for output in llm.chat_stream(one)) == "hi"
    with pytest.raises(InvalidRequest, match=r"prompt 1: messages\[0\] needs 'role' and 'content'"):
        llm.chat([one, [{"role": "user"}]])
    with pytest.raises(InvalidRequest, match="messages is empty"):
        llm.chat([])


def test_a_stream_is_the_answer_in_pieces(llm: LLM) -> None:
    outputs = list(llm.stream("say:hello"))
    assert "".join(output.text for output in outputs) == "hello"
    assert [output.offset for output in outputs] == [
        sum(len(before.token_ids) for before in outputs[:index]) for index in range(len(outputs))
    ]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert all(output.finish_reason is None for output in outputs[:-1])


def test_a_slow_reader_gets_fewer_and_longer_deltas(llm: LLM) -> None:
    stream = llm.stream("a", SamplingParams(max_tokens=90))
    eventually(llm)
    (output,) = list(stream)
    assert output.text == (DEFAULT * 2)[:90]
    assert output.finish_reason is FinishReason.LENGTH


def test_leaving_a_stream_aborts_its_request(fake: Installed) -> None:  # E6
    with LLM(fake.config(step_seconds=0.01)) as llm:
        for _ in llm.stream("a", SamplingParams(max_tokens=400)):
            break
        eventually(llm)
        dropped = llm.stream("b", SamplingParams(max_tokens=400))
        del dropped
        eventually(llm)
        with llm.stream("c", SamplingParams(max_tokens=400)) as stream:
            next(stream)
        assert list(stream) == []
        eventually(llm)
        assert llm.generate("d", FEW)[0].text == "the "  # a step or more: what was in flight has been committed
        stats = llm.stats().scheduler
        assert stats.num_free_blocks == stats.num_blocks


def test_abort_from_elsewhere(fake: Installed) -> None:  # E1
    with LLM(fake.config(step_seconds=0.01)) as llm:
        stream = llm.stream("a", SamplingParams(max_tokens=400))
        next(stream)
        llm.abort(stream.request_id)
        assert list(stream)[-1].finish_reason is FinishReason.ABORT
        with pytest.raises(UnknownRequest) as caught:
            llm.abort("nobody")
        assert str(caught.value) == "no unfinished request has the id 'nobody'"
        with pytest.raises(InvalidRequest, match="request_id must be a string, not int"):
            llm.abort(7)  # type: ignore[arg-type]  # what a client may do all the same


def test_an_interrupt_aborts_what_was_asked_and_leaves_the_engine_usable(
    fake: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(fake.config(step_seconds=0.01)) as llm:
        other = llm.stream("other", SamplingParams(max_tokens=10))
        wait = threading.Condition.wait

        def interrupted(self: threading.Condition, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread():
                monkeypatch.undo()
                raise KeyboardInterrupt
            return wait(self, timeout)

        monkeypatch.setattr(threading.Condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], SamplingParams(max_tokens=400))
        assert "".join(output.text for output in other) == DEFAULT[:10]
        eventually(llm)
        assert llm.generate("d", FEW)[0].text == "the "


def test_many_threads_share_one_engine(llm: LLM) -> None:
    texts: dict[int, str] = {}

    def ask(index: int) -> None:
        texts[index] = llm.generate(f"say:answer {index}")[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts == {index: f"answer {index}" for index in range(8)}


def test_the_engines_death_is_told_to_everybody_once(fake: Installed) -> None:  # E2, E8
    with LLM(fake.config(step_seconds=0.01)) as llm:
        streams = [llm.stream("a", SamplingParams(max_tokens=400)) for _ in range(5)]
        with pytest.raises(EngineDead) as first:
            llm.generate("crash")
        assert str(first.value).endswith("failed in execute_model: ValueError: asked to crash")
        errors: list[Any] = [first.value]
        for stream in streams:
            with pytest.raises(EngineDead) as caught:
                list(stream)
            errors.append(caught.value)
            assert list(stream) == []
        for _ in range(3):
            with pytest.raises(EngineDead) as caught:
                llm.generate("a")
            errors.append(caught.value)
        assert len(set(map(id, errors))) == len(errors)
        assert {str(error) for error in errors} == {str(first.value)}
        assert all(error.__cause__ is None for error in errors)


def test_closing_leaves_no_thread_and_later_calls_say_so(fake: Installed) -> None:
    before = threading.active_count()
    llm = LLM(fake.config())
    stream = llm.stream("a", SamplingParams(max_tokens=400))
    llm.close()
    llm.close()
    assert threading.active_count() == before
    with pytest.raises(EngineDead, match="the engine is closed; make a new one"):
        list(stream)
    for call in (lambda: llm.generate("a"), llm.stats, lambda: llm.stream("a"), lambda: llm.abort("a")):
        with pytest.raises(EngineDead, match="the engine is closed; make a new one"):
            call()


def test_a_start_that_fails_leaves_no_thread(fake: Installed) -> None:
    before = threading.active_count()
    with pytest.raises(WorkerFailed):
        LLM(fake.config(fail="load_model"))
    assert threading.active_count() == before


def test_a_bar_goes_to_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], FEW, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err
