"""The one door to a policy's code: checks each answer, and turns what it raises into ``PolicyFailed`` with its name.

A policy that fails stops the engine with its own error; another rule never takes its place in silence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import index as as_index
from typing import Any, NoReturn, TypeVar

from enginebay.errors import PolicyFailed, in_words, is_interrupt, shown
from enginebay.interfaces import Policy, PolicyState
from enginebay.messages import FinishReason, StepReport
from enginebay.scheduling._record import Record

R = TypeVar("R")

_WAY_OUT = "The engine stops, since no other rule may take its place: correct it, or set [scheduler] use to another."


class PolicyDoor:
    """Asks one policy. An observer that the policy does not override is None here and costs nothing.

    A method that ``__init__`` sets on the policy itself overrides like one of its class.
    """

    def __init__(self, policy: Policy[Any]) -> None:
        self._policy = policy
        cls = type(policy)
        self._name = f"{cls.__module__}.{cls.__qualname__}"
        self.window: int = self._checked_window()
        self.may_overtake_preempted: bool = self._read("may_overtake_preempted", bool)
        self.preempts_running: bool = self._read("preempts_running", bool)
        self.grouped: bool = self._overrides("group")
        if self.grouped and self.window:
            raise PolicyFailed(
                f"policy {self._name}: it has a window of {self.window} and groups (group() is overridden), and only "
                f"one of the two can say who is next. {_WAY_OUT}"
            )
        self.on_scheduled = self.scheduled if self._overrides("on_scheduled") else None
        self.on_output = self.output if self._overrides("on_output") else None
        self.on_finished = self.finished if self._overrides("on_finished") else None
        self.on_step = self.step if self._overrides("on_step") else None
        self._default_admit = not self._overrides("admit")

    def key(self, record: Record) -> tuple[Any, ...]:
        """The sort key of a request."""
        try:
            key = self._policy.key(record.view)
        except BaseException as error:
            self._raised("key()", error)
        if not isinstance(key, tuple):
            self._wrong("key()", f"returned {shown(key)} for request {record.request_id!r}: a tuple is expected")
        return key

    def group(self, record: Record) -> str:
        """The group that a waiting request stands in."""
        try:
            group = self._policy.group(record.view)
        except BaseException as error:
            self._raised("group()", error)
        if not isinstance(group, str):
            self._wrong("group()", f"returned {shown(group)} for request {record.request_id!r}: a string is expected")
        return group if type(group) is str else str.__str__(group)  # whose hash is its text's, and always the same

    def group_key(self, group: str) -> tuple[Any, ...]:
        """The sort key of a group, as it is now."""
        try:
            key = self._policy.group_key(group)
        except BaseException as error:
            self._raised("group_key()", error)
        if not isinstance(key, tuple):
            self._wrong("group_key()", f"returned {shown(key)} for group {shown(group)}: a tuple is expected")
        return key

    def order(self, method: str, operation: Callable[..., R], *arguments: object) -> R:
        """The result of an operation in which keys are compared that ``method`` returned."""
        try:
            return operation(*arguments)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise PolicyFailed(
                f"policy {self._name}: the keys that {method}() returned cannot be compared: "
                f"{in_words(error)}. {_WAY_OUT}"
            ) from error

    def choose(self, records: Sequence[Record]) -> int:
        """The index of the request to admit next."""
        try:
            index = self._policy.choose([record.view for record in records])
        except BaseException as error:
            self._raised("choose()", error)
        return self._index("choose", index, len(records), "requests", "")

    def victim(self, candidates: Sequence[Record], needed: Record) -> int | None:
        """The index of the request that gives its blocks to ``needed``, or None."""
        try:
            index = self._policy.victim([record.view for record in candidates], needed.view)
        except BaseException as error:
            self._raised("victim()", error)
        return None if index is None else self._index("victim", index, len(candidates), "candidates", ", or None,")

    def admit(self, record: Record, state: Callable[[], PolicyState]) -> bool:
        """Whether the request may start in this step."""
        if self._default_admit:
            return True
        try:
            answer = self._policy.admit(record.view, state())
        except BaseException as error:
            self._raised("admit()", error)
        if not isinstance(answer, _bools()):
            self._wrong(
                "admit()", f"returned {shown(answer)} for request {record.request_id!r}: True or False is expected"
            )
        return bool(answer)

    def scheduled(self, record: Record, num_tokens: int) -> None:
        """Tell the policy what runs."""
        try:
            self._policy.on_scheduled(record.view, num_tokens)
        except BaseException as error:
            self._raised("on_scheduled()", error)

    def output(self, record: Record, token_ids: tuple[int, ...]) -> None:
        """Tell the policy what was committed."""
        try:
            self._policy.on_output(record.view, token_ids)
        except BaseException as error:
            self._raised("on_output()", error)

    def finished(self, record: Record, reason: FinishReason) -> None:
        """Tell the policy who ended."""
        try:
            self._policy.on_finished(record.view, reason)
        except BaseException as error:
            self._raised("on_finished()", error)

    def step(self, report: StepReport) -> None:
        """Tell the policy that a step ended."""
        try:
            self._policy.on_step(report)
        except BaseException as error:
            self._raised("on_step()", error)

    def _checked_window(self) -> int:
        window = self._read("window")
        number = _number(window)
        if number is None or number < 0:
            self._wrong("window", f"is {shown(window)}: a number from 0 on is expected")
        return number

    def _read(self, name: str, kind: Callable[[Any], Any] | None = None) -> Any:
        """An attribute, made one of that kind; it may be a property that raises."""
        try:
            value = getattr(self._policy, name)
            return value if kind is None else kind(value)
        except BaseException as error:
            self._raised(name, error)

    def _overrides(self, name: str) -> bool:
        """Whether the policy has a method of its own there, of its class or of itself."""
        return getattr(self._read(name), "__func__", None) is not getattr(Policy, name)

    def _index(self, method: str, index: object, count: int, noun: str, else_: str) -> int:
        number = _number(index)
        if number is None or not 0 <= number < count:
            what = f"an index from 0 to {count - 1}{else_} is expected"
            self._wrong(f"{method}()", f"returned {shown(index)} for {count} {noun}: {what}")
        return number

    def _wrong(self, where: str, what: str) -> NoReturn:
        raise PolicyFailed(f"policy {self._name}: {where} {what}. {_WAY_OUT}")

    def _raised(self, where: str, error: BaseException) -> NoReturn:
        """``where`` of the policy raised; PolicyFailed, unless somebody wants all of it to end."""
        if is_interrupt(error):
            raise error
        raise PolicyFailed(f"policy {self._name}: {where} raised {in_words(error)}. {_WAY_OUT}") from error


def _number(value: Any) -> int | None:
    """What is an index to Python, such as a number of numpy's; None for what is none. True is no number."""
    if isinstance(value, bool):
        return None
    try:
        return as_index(value)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return None


def _bools() -> tuple[type[Any], ...]:
    """bool, and numpy's where somebody uses numpy: its comparisons return it."""
    numpy = sys.modules.get("numpy")
    return (bool,) if numpy is None else (bool, numpy.bool_)
