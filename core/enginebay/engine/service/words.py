"""The engine's own values as the messages of ``messages._front`` carry them, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from enginebay import errors
from enginebay.engine.admission.admit import Ask
from enginebay.engine.admission.limits import AdmissionLimits, CheckFits
from enginebay.errors import EnginebayError, EngineDead, RequestError, one_line
from enginebay.messages import AskedRequest, FrontLimits

__all__ = ["ask_of", "asked", "error_of", "limits_of", "limits_told", "told"]

_MAX_MESSAGE: Final = 4000

_FIELDS: Final = tuple(name for name in Ask.__dataclass_fields__)


def asked(ask: Ask, operation: str) -> AskedRequest:
    """A request as it is sent."""
    return AskedRequest(operation=operation, **{name: getattr(ask, name) for name in _FIELDS})


def ask_of(request: AskedRequest, request_id: str | None = None) -> Ask:
    """A request as it came, not yet looked at; under another id, where one is given."""
    ask = Ask(**{name: getattr(request, name) for name in _FIELDS})
    return ask if request_id is None else replace(ask, request_id=request_id)


def limits_told(limits: AdmissionLimits) -> FrontLimits:
    """What a front end is told of the limits."""
    fits = limits.check_fits
    return FrontLimits(
        vocab_size=limits.vocab_size,
        runner=limits.runner,
        features=tuple(sorted(limits.features)),
        has_text=limits.has_text,
        max_model_len=limits.max_model_len,
        extras=tuple(name for name, _ in limits.request_extras),
        untimed=limits.untimed,
        fits=msgspec.msgpack.encode(fits) if isinstance(fits, CheckFits) else b"",
    )


def limits_of(told: FrontLimits) -> AdmissionLimits:
    """The limits that a front end keeps: what they let pass, the engine looks at again."""
    fits = msgspec.msgpack.decode(told.fits, type=CheckFits) if told.fits else None
    return AdmissionLimits(
        vocab_size=told.vocab_size,
        runner=told.runner,
        features=frozenset(told.features),
        check_fits=fits or (lambda num_prompt_tokens, max_tokens: None),
        has_text=told.has_text,
        max_model_len=told.max_model_len,
        untimed=told.untimed,
    )


def told(error: EnginebayError) -> tuple[str, str, str | None]:
    """An error as class, message and field: the nearest class that is public, a message that is not endless."""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__name__ in errors.__all__)
    param = error.param if isinstance(error, RequestError) else None
    return kind, one_line(str(error), _MAX_MESSAGE), param


def error_of(kind: str, message: str, param: str | None = None) -> EnginebayError:
    """The error again, as one of the caller's own. A class that is not known here is told as ``EngineDead``."""
    known = getattr(errors, kind, None) if kind in errors.__all__ else None
    if not (isinstance(known, type) and issubclass(known, EnginebayError)):
        return EngineDead(message)
    return known(message, param=param) if issubclass(known, RequestError) else known(message)
