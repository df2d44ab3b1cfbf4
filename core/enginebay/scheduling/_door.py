"""The one door to a policy's code: checks each answer, and turns what it raises into ``PolicyFailed`` with its name.

A policy that fails stops the engine with its own error; another rule never takes its place in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from enginebay.errors import PolicyFailed
from enginebay.interfaces import Policy, PolicyState
from enginebay.messages import FinishReason, StepReport
from enginebay.scheduling._record import Record

_WAY_OUT = "The engine stops, since no other rule may take its place: correct it, or set [scheduler] use to another."


class PolicyDoor:
    """Asks one policy. An observer that the policy does not override is None here and costs nothing."""

    def __init__(self, policy: Policy[Any]) -> None:
        self._policy = policy
        cls = type(policy)
        self._name = f"{cls.__module__}.{cls.__qualname__}"
        self.window: int = self._checked_window()
        self.may_overtake_preempted: bool = bool(policy.may_overtake_preempted)
        self.preempts_running: bool = bool(policy.preempts_running)
        self.grouped: bool = cls.group is not Policy.group
        if self.grouped and self.window:
            raise PolicyFailed(
                f"policy {self._name}: it has a window of {self.window} and groups (group() is overridden), and only "
                f"one of the two can say who is next. {_WAY_OUT}"
            )
        self.on_scheduled = self.scheduled if cls.on_scheduled is not Policy.on_scheduled else None
        self.on_output = self.output if cls.on_output is not Policy.on_output else None
        self.on_finished = self.finished if cls.on_finished is not Policy.on_finished else None
        self.on_step = self.step if cls.on_step is not Policy.on_step else None
        self._default_admit = cls.admit is Policy.admit

    def key(self, record: Record) -> tuple[Any, ...]:
        """The sort key of a request."""
        try:
            key = self._policy.key(record.view)
        except Exception as error:
            self._raised("key", error)
        if not isinstance(key, tuple):
            self._wrong("key", f"returned {key!r} for request {record.request_id!r}: a tuple is expected")
        return key

    def group(self, record: Record) -> str:
        """The group that a waiting request stands in."""
        try:
            group = self._policy.group(record.view)
        except Exception as error:
            self._raised("group", error)
        if not isinstance(group, str):
            self._wrong("group", f"returned {group!r} for request {record.request_id!r}: a string is expected")
        return group

    def group_key(self, group: str) -> tuple[Any, ...]:
        """The sort key of a group, as it is now."""
        try:
            key = self._policy.group_key(group)
        except Exception as error:
            self._raised("group_key", error)
        if not isinstance(key, tuple):
            self._wrong("group_key", f"returned {key!r} for group {group!r}: a tuple is expected")
        return key

    def comparing(self, error: Exception, method: str = "key") -> NoReturn:
        """Two keys could not be compared."""
        raise PolicyFailed(
            f"policy {self._name}: the keys that {method}() returned cannot be compared: "
            f"{type(error).__name__}: {error}. {_WAY_OUT}"
        ) from error

    def choose(self, records: Sequence[Record]) -> int:
        """The index of the request to admit next."""
        try:
            index = self._policy.choose([record.view for record in records])
        except Exception as error:
            self._raised("choose", error)
        return self._index("choose", index, len(records), "requests", "")

    def victim(self, candidates: Sequence[Record], needed: Record) -> int | None:
        """The index of the request that gives its blocks to ``needed``, or None."""
        try:
            index = self._policy.victim([record.view for record in candidates], needed.view)
        except Exception as error:
            self._raised("victim", error)
        return None if index is None else self._index("victim", index, len(candidates), "candidates", ", or None,")

    def admit(self, record: Record, state: Callable[[], PolicyState]) -> bool:
        """Whether the request may start in this step."""
        if self._default_admit:
            return True
        try:
            answer = self._policy.admit(record.view, state())
        except Exception as error:
            self._raised("admit", error)
        if not isinstance(answer, bool):
            self._wrong("admit", f"returned {answer!r} for request {record.request_id!r}: True or False is expected")
        return answer

    def scheduled(self, record: Record, num_tokens: int) -> None:
        """Tell the policy what runs."""
        try:
            self._policy.on_scheduled(record.view, num_tokens)
        except Exception as error:
            self._raised("on_scheduled", error)

    def output(self, record: Record, token_ids: tuple[int, ...]) -> None:
        """Tell the policy what was committed."""
        try:
            self._policy.on_output(record.view, token_ids)
        except Exception as error:
            self._raised("on_output", error)

    def finished(self, record: Record, reason: FinishReason) -> None:
        """Tell the policy who ended."""
        try:
            self._policy.on_finished(record.view, reason)
        except Exception as error:
            self._raised("on_finished", error)

    def step(self, report: StepReport) -> None:
        """Tell the policy that a step ended."""
        try:
            self._policy.on_step(report)
        except Exception as error:
            self._raised("on_step", error)

    def _checked_window(self) -> int:
        window: object = self._policy.window
        if not isinstance(window, int) or isinstance(window, bool) or window < 0:
            raise PolicyFailed(f"policy {self._name}: window is {window!r}: a number from 0 on is expected. {_WAY_OUT}")
        return window

    def _index(self, method: str, index: object, count: int, noun: str, else_: str) -> int:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            what = f"an index from 0 to {count - 1}{else_} is expected"
            self._wrong(method, f"returned {index!r} for {count} {noun}: {what}")
        return index

    def _wrong(self, method: str, what: str) -> NoReturn:
        raise PolicyFailed(f"policy {self._name}: {method}() {what}. {_WAY_OUT}")

    def _raised(self, method: str, error: Exception) -> NoReturn:
        raise PolicyFailed(
            f"policy {self._name}: {method}() raised {type(error).__name__}: {error}. {_WAY_OUT}"
        ) from error
