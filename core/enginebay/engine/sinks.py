"""Where outputs wait for their reader: at most one merged delta per choice, however slow the reader is."""

from __future__ import annotations

from enginebay.messages import RequestOutput

__all__ = ["PendingDelta"]


class PendingDelta:
    """Deltas of one choice of a request, merged into one. Adding is cheap; joining happens when it is taken.

    A delta that no other has joined, as with a reader that keeps up, is passed on as it is.
    """

    __slots__ = ("_last", "_merged")

    def __init__(self) -> None:
        self._last: RequestOutput | None = None
        self._merged: _Merged | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    def add(self, output: RequestOutput) -> None:
        """Append a delta; offsets are gapless, so the merged one starts where the first does."""
        if self._last is not None:
            if self._merged is None:
                self._merged = _Merged(self._last)
            self._merged.append(output)
        self._last = output

    def take(self) -> RequestOutput:
        """The merged delta; afterwards there is none."""
        whole = self.whole()
        self._last = self._merged = None
        return whole

    def whole(self) -> RequestOutput:
        """The merged delta, which stays."""
        assert self._last is not None, "nothing is pending"
        return self._last if self._merged is None else self._merged.joined(self._last)


class _Merged:
    """Two deltas or more, their sequences one behind the other."""

    def __init__(self, first: RequestOutput) -> None:
        self._offset = first.offset
        self._token_ids = list(first.token_ids)
        self._texts = [first.text]
        self._logprobs = list(first.logprobs)
        self._prompt_logprobs = list(first.prompt_logprobs)

    def append(self, output: RequestOutput) -> None:
        assert output.offset == self._offset + len(self._token_ids), "a gap between two deltas"
        self._token_ids.extend(output.token_ids)
        self._texts.append(output.text)
        if output.logprobs:
            self._logprobs.extend(output.logprobs)
        if output.prompt_logprobs:
            self._prompt_logprobs.extend(output.prompt_logprobs)

    def joined(self, last: RequestOutput) -> RequestOutput:
        return RequestOutput(
            request_id=last.request_id,
            offset=self._offset,
            choice=last.choice,
            token_ids=tuple(self._token_ids),
            text="".join(self._texts),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            usage=last.usage,
            error=last.error,
        )
