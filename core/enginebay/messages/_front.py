"""What a front end in another process and the engine say to each other: two closed unions of typed messages.

A front end has sessions, not connections: ``Welcome`` names one, and a ``Hello`` with that name takes it up again after
a connection was lost. What comes of one request is a stream of numbered frames (``Delta``, ``Failed``), from 1 on;
``Taken`` acknowledges them, and what was not acknowledged is sent again.
"""

from __future__ import annotations

from msgspec import Struct, field

from enginebay.messages._control import Control, ControlDone
from enginebay.messages._requests import RequestOutput, SamplingParams
from enginebay.messages._workers import ModelInfo

FRONT_PROTOCOL = 1
"""The version of these messages; an engine refuses a front end of another one."""


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """The first message of a connection. ``session``: the one to take up, with the last frame that came per request."""

    protocol: int = FRONT_PROTOCOL
    session: str = ""
    arrived: dict[str, int] = field(default_factory=dict)


class AskedRequest(Struct, frozen=True, kw_only=True):
    """One request of a front end, tokenized there; ``timeout`` is seconds from its arrival."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    operation: str
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    cache_salt: str = ""
    adapter: str = ""
    traceparent: str = ""
    extra: dict[str, bytes] = field(default_factory=dict)


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """Take these requests as one: no step sees some of them and not the others."""

    requests: tuple[AskedRequest, ...]


class CheckRequest(Struct, frozen=True, kw_only=True, tag="check_request"):
    """Say what is wrong with a request, and do not run it; answered by ``Answer`` or ``Refusal``."""

    number: int
    request: AskedRequest


class AbortRequest(Struct, frozen=True, kw_only=True, tag="abort_request"):
    """End a request of this session."""

    request_id: str


class Taken(Struct, frozen=True, kw_only=True, tag="taken"):
    """Every frame of the request up to this number has arrived."""

    request_id: str
    number: int


class AskControl(Struct, frozen=True, kw_only=True, tag="ask_control"):
    """A command; answered by ``Answer`` or ``Refusal`` of the same number."""

    number: int
    command: Control


class AskStats(Struct, frozen=True, kw_only=True, tag="ask_stats"):
    """How the engine stands; answered by ``Stats`` or ``Refusal`` of the same number."""

    number: int


class Ping(Struct, frozen=True, kw_only=True, tag="ping"):
    """Are you there? Answered by ``Pong`` at once, also while a step runs."""


class Goodbye(Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The session ends; what is unfinished of it is aborted."""


FromFront = Hello | Submit | CheckRequest | AbortRequest | Taken | AskControl | AskStats | Ping | Goodbye


class FrontLimits(Struct, frozen=True, kw_only=True):
    """What a front end needs to tell a bad request by itself. ``fits``: bytes for the engine's own code, or none.

    ``extras`` are the plugins that look at ``extra``: a request with such a one is checked by the engine. ``untimed``
    is why no request can have a timeout, or "".
    """

    vocab_size: int
    runner: str
    features: tuple[str, ...] = ()
    has_text: bool = True
    max_model_len: int | None = None
    extras: tuple[str, ...] = ()
    untimed: str = ""
    fits: bytes = b""


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome"):
    """The session, and what the front end must know of the engine. ``known``: the requests that it has of the session.

    ``model`` is without its config; ``tokenizer`` is the folder or file that the engine's config names, or "".
    ``host`` and ``boot`` tell whether ``pid`` can be looked for where the front end runs. ``control_port``: where the
    socket for control listens, over TCP. ``patience``: seconds after which a question has no answer to wait for;
    ``command_patience``: the same of a command, beside ``groups`` times the timeout that it has itself;
    ``change_patience``: of one that starts workers anew.
    """

    session: str
    pid: int
    host: str
    boot: str
    model: ModelInfo
    tokenizer: str = ""
    in_force: dict[str, str] = field(default_factory=dict)
    limits: FrontLimits
    roles: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    control_port: int = 0
    patience: float = 660.0
    command_patience: float = 3000.0
    groups: int = 1
    change_patience: float = 0.0


class Delta(Struct, frozen=True, kw_only=True, tag="delta"):
    """The next frame of a request's stream: an output, whose ``request_id`` says of which."""

    number: int
    output: RequestOutput


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """The last frame of a request that was refused or lost; ``kind`` is the error's class, ``param`` as it has it."""

    number: int
    request_id: str
    kind: str
    message: str
    param: str | None = None


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """What was asked under this number was done."""

    number: int
    done: ControlDone = ControlDone()


class Stats(Struct, frozen=True, kw_only=True, tag="stats"):
    """How the engine stands: an encoded ``EngineStats``."""

    number: int
    stats: bytes


class Refusal(Struct, frozen=True, kw_only=True, tag="refusal"):
    """What was asked under this number was not done."""

    number: int
    kind: str
    message: str
    param: str | None = None


class Pong(Struct, frozen=True, kw_only=True, tag="pong"):
    """I am."""


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The session, or the whole engine, has ended, and why; nothing more comes."""

    kind: str
    message: str


ToFront = Welcome | Delta | Failed | Answer | Stats | Refusal | Pong | Ended
