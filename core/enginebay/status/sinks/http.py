"""A sink that keeps records as JSON on an HTTP server: one address per slot, GET, PUT and DELETE with ETags.

Whatever stores bodies by address and keeps to ``If-Match`` and ``If-None-Match: *`` will do. Nothing is listed there:
what this engine's slots hold is asked for one by one.
"""

from __future__ import annotations

import os
from http.client import HTTPException
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec
from pydantic import Field, field_validator

from enginebay.errors import in_words, one_line
from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Options, StatusConflict, StatusSink, StatusSinkContext, StatusSinkPlugin, Stored
from enginebay.messages import Slot, StatusRecord
from enginebay.status.sinks._bounded import bounded_connection
from enginebay.status.sinks._deadline import Deadline
from enginebay.status.sinks._names import Names

__all__ = ["MAX_BODY", "HttpSink", "HttpSinkOptions", "enginebay_register_status_sinks"]

MAX_BODY: Final = 1 << 20
_TRIES: Final = 3
"""Deletes of one record while others write to it."""


class HttpSinkOptions(Options):
    """What stands in ``[status.http]``."""

    url: Annotated[str, Field(description="http:// or https://, above the slots: the records stand at URL/SLOT.")]
    timeout: Annotated[
        float,
        Field(
            gt=0,
            le=60,
            allow_inf_nan=False,
            description="Seconds that a call may take in all, whatever the server does.",
        ),
    ] = 2.0
    authorization_env: Annotated[
        str | None,
        Field(description="Name of the environment variable whose value is sent as the header Authorization."),
    ] = None

    @field_validator("url")
    @classmethod
    def _usable(cls, value: str) -> str:
        if any(letter.isspace() or not letter.isprintable() for letter in value):
            raise ValueError("has a space or a control character in it")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"must be http://HOST/… or https://HOST/…, and is '{one_line(value, 100)}'")
        if parts.username is not None or parts.password is not None:
            raise ValueError("has a name or a password in it: authorization_env names a variable that has the header")
        if parts.query or parts.fragment:
            raise ValueError("has a part behind ? or #, and the slots' names are put at its end: leave it out")
        _ = parts.port  # raises ValueError for what is none
        return value.rstrip("/")


@hookimpl
def enginebay_register_status_sinks() -> list[StatusSinkPlugin[HttpSinkOptions]]:
    """Offer ``http``."""
    return [
        StatusSinkPlugin(
            name="http",
            options=HttpSinkOptions,
            factory=HttpSink,
            summary="JSON on a server, by GET, PUT and DELETE with ETags.",
        )
    ]


class _Answer(NamedTuple):
    """What the server said: the status, the ETag ("" for none) and the body."""

    status: int
    tag: str
    body: bytes


class HttpSink(StatusSink[HttpSinkOptions]):
    """See the module. Each call has a connection of its own, so that none is ever stale."""

    def __init__(self, context: StatusSinkContext[HttpSinkOptions]) -> None:
        super().__init__(context)
        self._slots: set[Slot] = set()
        self._names = Names()

    def read(self, slot: Slot) -> Stored | None:
        """See ``StatusSink``."""
        return self._read(slot, self._deadline())

    def _read(self, slot: Slot, deadline: Deadline) -> Stored | None:
        answer = self._ask(deadline, "GET", slot)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._refused("GET", slot, answer)
        if not answer.tag:
            raise OSError(f"GET {self._address(slot)}: answered without an ETag, by which alone a write is safe")
        try:
            record = msgspec.json.decode(answer.body, type=StatusRecord)
        except msgspec.DecodeError as error:
            raise OSError(f"GET {self._address(slot)}: no status record stands there: {error}") from error
        return Stored(record=record, tag=answer.tag)

    def write(self, record: StatusRecord, seen: str) -> str:
        """See ``StatusSink``."""
        slot, deadline = record.status.slot, self._deadline()
        condition = {"If-Match": seen} if seen else {"If-None-Match": "*"}
        answer = self._ask(deadline, "PUT", slot, msgspec.json.encode(record), condition)
        if answer.status == 412 or (answer.status == 404 and seen):  # some say of what is gone that it is not there
            raise StatusConflict(self._read(slot, deadline))
        if answer.status not in (200, 201, 204):
            raise self._refused("PUT", slot, answer)
        self._slots.add(slot)
        if answer.tag:
            return answer.tag
        held = self._read(slot, deadline)
        if held is None or held.record != record:
            raise StatusConflict(held)
        return held.tag

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        """See ``StatusSink``."""
        deadline = self._deadline()
        for _ in range(_TRIES):
            held = self._read(slot, deadline)
            if held is None or held.record.status.incarnation.id != incarnation_id:
                return
            answer = self._ask(deadline, "DELETE", slot, headers={"If-Match": held.tag})
            if answer.status in (200, 202, 204, 404):
                return
            if answer.status != 412:
                raise self._refused("DELETE", slot, answer)
        raise OSError(f"DELETE {self._address(slot)}: what stands there changed {_TRIES} times meanwhile")

    def records(self) -> list[Stored]:
        """See ``StatusSink``."""
        return [held for slot in sorted(self._slots) if (held := self.read(slot)) is not None]

    def _deadline(self) -> Deadline:
        """Of one call, whatever is asked of the server for it."""
        return Deadline(self.context.options.timeout)

    def _ask(
        self,
        deadline: Deadline,
        method: str,
        slot: Slot,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Answer:
        address = self._address(slot)
        target = urlsplit(address)
        secure = target.scheme == "https"
        port = target.port or (443 if secure else 80)  # told: else http.client looks for one in an IPv6 address
        connection = bounded_connection(target.hostname or "", port, secure, deadline, self._names)
        every = {"Accept": "application/json", "Content-Type": "application/json", "Connection": "close"}
        every |= self._authorization() | (headers or {})
        try:
            connection.request(method, target.path, body, every)
            with connection.getresponse() as response:
                content = response.read(MAX_BODY + 1)
        except (OSError, HTTPException) as error:
            raise OSError(f"{method} {address}: {in_words(error)}") from error
        finally:
            connection.close()
        if len(content) > MAX_BODY:
            raise OSError(f"{method} {address}: answered with more than {MAX_BODY >> 20} MiB")
        return _Answer(response.status, response.getheader("ETag") or "", content)

    def _authorization(self) -> dict[str, str]:
        name = self.context.options.authorization_env
        if name is None:
            return {}
        value = os.environ.get(name, "").strip()
        if not (value and value.isascii() and value.isprintable()):  # what it holds is a secret, also when it is bad
            what = "holds what no header may" if value else "is not set"
            raise OSError(f"the environment variable {name}, named by [status.http] authorization_env, {what}")
        return {"Authorization": value}

    def _address(self, slot: Slot) -> str:
        name = "/".join(quote(part, safe="").replace("..", "%2E%2E") for part in slot.name.split("/", 2))
        return f"{self.context.options.url}/{name}"

    def _refused(self, method: str, slot: Slot, answer: _Answer) -> OSError:
        said = one_line(answer.body.decode(errors="replace"), 100)
        return OSError(f"{method} {self._address(slot)}: answered {answer.status}{f' ({said})' if said else ''}")
