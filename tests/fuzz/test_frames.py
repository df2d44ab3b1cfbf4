"""Frames of the transport: a damaged one is told from a whole one, whichever kind is expected."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from enginebay.messages import (
    ExecuteModel,
    ModelRunnerOutput,
    NewRequest,
    SamplingParams,
    SchedulerOutput,
    StepResult,
)
from enginebay.transport import (
    TransportError,
    decode_call,
    decode_envelope,
    decode_reply,
    decode_result,
    decode_start_payload,
    encode,
    encode_reply,
)
from support.fuzzing import SHORT, SOAK, Tally, any_value, fuzz, mutate_bytes, mutate_json

NEW = NewRequest(
    request_id="r",
    token_ids=(1, 2, 3),
    num_prompt_tokens=3,
    params=SamplingParams(logit_bias={3: 0.5}, stop=("x",), bad_words_token_ids=((1, 2),)),
    seed=2**63,
    block_ids=((0, 1),),
    num_computed_tokens=0,
    extra={"a": b"\0\xff"},
)
FRAMES = (
    encode(ExecuteModel(scheduler_output=SchedulerOutput(step=4, new=(NEW,), num_scheduled_tokens={"r": 3}))),
    encode(StepResult(step=4, output=ModelRunnerOutput(request_ids=("r",), sampled_token_ids=((5,),)))),
    encode_reply(1, 2, b"x"),
)
DECODERS = (decode_call, decode_result, decode_envelope, decode_start_payload, decode_reply)
DEPTHS = {"field": r"\$", "bytes": "damaged|truncated|malformed|trailing|shorter"}


def _changed(chance: random.Random) -> bytes:
    frame = chance.choice(FRAMES)
    act = chance.random()
    if act < 0.2:
        return frame
    if act < 0.6 and frame is not FRAMES[2]:
        tree: Any = mutate_json(chance, msgspec.msgpack.decode(frame, strict=False))
        try:
            return msgspec.msgpack.encode(tree)
        except (OverflowError, UnicodeEncodeError):  # what no frame can hold
            return frame[:-1]
    if act < 0.65:
        return chance.choice((b"\x91" * 10_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"", b"\xdf" + frame))
    if act < 0.7:
        return msgspec.msgpack.encode(str(any_value(chance)).encode("utf-8", "replace"))
    return mutate_bytes(chance, frame)


def _case(chance: random.Random) -> str | None:
    frame = _changed(chance)
    decoder = DECODERS[0] if frame[:1] in (b"\x82", b"\x83") and chance.random() < 0.6 else chance.choice(DECODERS)
    message: object = decoder(frame)
    if isinstance(message, ExecuteModel | StepResult):  # what came in whole goes out again
        frame = encode(message)
        assert encode(decoder(frame)) == frame  # not the messages: NaN is in them
    return decoder.__name__


def _run(count: int, seed: int) -> Tally:
    return fuzz("frames", _case, count=count, seed=seed, errors=(TransportError,), depths=DEPTHS)


def _check(tally: Tally) -> None:
    for label, least in (("decode_call", 0.02), ("decode_result", 0.02), ("field", 0.1), ("bytes", 0.05)):
        assert tally.share(label) >= least, label


def test_frames() -> None:
    _check(_run(2 * SHORT, 1))


@pytest.mark.soak
def test_many_frames() -> None:
    _check(_run(SOAK, 2))
