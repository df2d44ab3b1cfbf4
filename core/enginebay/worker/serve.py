"""The worker's loop: receive a call, do it, reply; a failed call is told as data and the loop goes on."""

from __future__ import annotations

from collections.abc import Callable

from enginebay.errors import is_interrupt
from enginebay.interfaces import WorkerChannel
from enginebay.messages import Call, ExecuteModel, Result, Shutdown, StartPayload
from enginebay.transport.codec import decode_call, decode_start_payload, encode, open_envelope
from enginebay.worker.failure import describe_failure
from enginebay.worker.worker import Worker, call_name

IDLE = "idle"


class Pulse:
    """What the worker is in, told as it enters, and told again where that asks for more time than usual."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._said = IDLE

    def say(self, phase: str) -> None:
        """It enters this."""
        self._said = phase
        self._channel.heartbeat(phase)

    def announce(self, seconds: int) -> None:
        """What it is in now may take so many seconds from now on."""
        self._channel.heartbeat(f"{self._said} +{max(0, int(seconds))}")


def serve(payload: bytes, channel: WorkerChannel, *, make_worker: Callable[[StartPayload], Worker] = Worker) -> None:
    """Serve one worker's calls until ``Shutdown``, a closed channel, or Ctrl-C; then give the device back.

    This is what runs in the worker's process (or thread), whoever started it. ``payload`` is an encoded
    ``StartPayload``. Every envelope is answered exactly once, in order, with an encoded ``Result``; an exception in a
    call is answered with a ``WorkerFailure`` and leaves the channel aligned. Raises ``DamagedMessage`` when the payload
    or an envelope cannot be read: then the line itself is broken, and nobody can be answered.
    """
    start = decode_start_payload(payload)
    worker, pulse = make_worker(start), Pulse(channel)
    worker.announce = pulse.announce
    try:
        while True:
            pulse.say(IDLE)
            frame = channel.receive(None)
            if frame is None or channel.closed():
                return
            head, body = open_envelope(frame)
            goes_on, reply = _answer(worker, head.traceparent, body, pulse, start.place.rank)
            channel.reply(head.generation, head.call_id, reply)
            if not goes_on:
                return
    except KeyboardInterrupt:
        return  # Ctrl-C reaches every process of the terminal: the engine's own handling says what it has to say
    except ConnectionError:
        return  # the engine has gone in the middle of an answer; what it left of us is given back below
    finally:
        worker.shutdown()


def _answer(worker: Worker, traceparent: str, body: memoryview, pulse: Pulse, rank: int) -> tuple[bool, bytes]:
    """(whether to go on, the encoded result) of one call."""
    phase = "decode"
    try:
        call: Call = decode_call(body)
        phase = call_name(call)
        pulse.say(f"{phase} {call.scheduler_output.step}" if isinstance(call, ExecuteModel) else phase)
        result: Result = worker.handle(call, traceparent)
        return not isinstance(call, Shutdown), encode(result)
    except BaseException as error:  # also SystemExit of a plugin, and what native code throws past Exception
        if is_interrupt(error):
            raise
        return phase != call_name(Shutdown), encode(describe_failure(error, phase=phase, rank=rank))
