"""Where outputs wait for their reader: at most one merged delta per choice, however slow the reader is."""

from __future__ import annotations

from enginebay.messages import RequestOutput, TokenLogprob

__all__ = ["PendingDelta"]


class PendingDelta:
    """Deltas of one choice of a request, merged into one. Adding is cheap; joining happens when it is taken."""

    def __init__(self) -> None:
        self._offset = 0
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._last: RequestOutput | None = None

    def __bool__(self) -> bool:
        return self._last is not None

    def add(self, output: RequestOutput) -> None:
        """Append a delta; offsets are gapless, so the merged one starts where the first does."""
        if self._last is None:
            self._offset = output.offset
        else:
            assert output.offset == self._offset + len(self._token_ids), "a gap between two deltas"
        self._token_ids.extend(output.token_ids)
        self._texts.append(output.text)
        self._logprobs.extend(output.logprobs)
        self._prompt_logprobs.extend(output.prompt_logprobs)
        self._last = output

    def take(self) -> RequestOutput:
        """The merged delta; afterwards there is none."""
        merged = self.whole()
        self._token_ids, self._texts, self._logprobs, self._prompt_logprobs = [], [], [], []
        self._last = None
        return merged

    def whole(self) -> RequestOutput:
        """The merged delta, which stays."""
        last = self._last
        assert last is not None, "nothing is pending"
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
