"""Unset values filled from the model and the runner's constraints, each with its reason; set ones kept or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from enginebay.config import Resolved
from enginebay.errors import CapabilityError
from enginebay.interfaces import BatchConstraints, SchedulerLimits
from enginebay.messages import ModelInfo

BLOCK_SIZE: Final = 16
MAX_NUM_SEQS: Final = 256
MAX_NUM_BATCHED_TOKENS: Final = 2048
_DTYPES: Final = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class InForce:
    """One value in force: its name, the value as text, and where it comes from."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The values in force; see ``Plan`` for units."""

    limits: SchedulerLimits
    block_size: int
    dtype: str
    cache_dtype: str
    prefix_caching: bool
    in_force: tuple[InForce, ...]


def settle(resolved: Resolved, model: ModelInfo, constraints: BatchConstraints, runner: str) -> Settled:
    """All values in force. ``runner`` is how messages name the runner: "runner 'acme' 1.2".

    Raises ``CapabilityError`` when a value that was set does not fit the model or the runner.
    """
    return _Settling(resolved, model, constraints, runner).settle()


class _Settling:
    """One run of ``settle``: reads the inputs, notes each decision."""

    def __init__(self, resolved: Resolved, model: ModelInfo, constraints: BatchConstraints, runner: str) -> None:
        self.resolved, self.config, self.model = resolved, resolved.config, model
        self.constraints, self.runner = constraints, runner
        self.notes: list[InForce] = []

    def settle(self) -> Settled:
        dtype = self._dtype()
        cache_dtype = self._cache_dtype(dtype)
        chunked = self._switch(
            "scheduler.chunked_prefill", self.config.scheduler.chunked_prefill, self.constraints.chunked_prefill
        )
        max_model_len = self._max_model_len(chunked)
        tokens, seqs = self._tokens_and_seqs(chunked, max_model_len)
        block_size = self._block_size()
        prefix_caching = self._switch(
            "cache.prefix_caching", self.config.cache.prefix_caching, self.constraints.prefix_caching
        )
        self._cache_size()
        self._as_set()
        scheduler = self.config.scheduler
        limits = SchedulerLimits(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            max_model_len=max_model_len,
            chunked_prefill=chunked,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            reserve_whole_prompt=scheduler.reserve_whole_prompt,
            watermark=scheduler.watermark,
            no_evict=scheduler.no_evict,
        )
        return Settled(
            limits=limits,
            block_size=block_size,
            dtype=dtype,
            cache_dtype=cache_dtype,
            prefix_caching=prefix_caching,
            in_force=tuple(self.notes),
        )

    def _note(self, name: str, value: object, why: str) -> None:
        shown = ("on" if value else "off") if isinstance(value, bool) else str(value)
        self.notes.append(InForce(name, shown, why))

    def _refuse(self, key: str, value: object, reason: str, way_out: str) -> CapabilityError:
        section, _, name = key.partition(".")
        shown = str(value).lower() if isinstance(value, bool) else value
        return CapabilityError(
            f"[{section}] {name} = {shown} ({self.resolved.origin(key)}) does not fit {reason}: {way_out}."
        )

    def _dtype(self) -> str:
        asked = self.config.model.dtype
        if asked != "auto":
            self._note("dtype", asked, self.resolved.origin("model.dtype"))
            return asked
        if self.model.dtype not in _DTYPES:
            raise CapabilityError(
                f"the model {self.model.name} has dtype '{self.model.dtype}', which is none of "
                f"{', '.join(_DTYPES)}: set [model] dtype."
            )
        self._note("dtype", self.model.dtype, "the model's")
        return self.model.dtype

    def _as_set(self) -> None:
        """What the mechanics keep for every policy, and no runner has a say in."""
        scheduler = self.config.scheduler
        for name, value in (
            ("long_prefill_token_threshold", scheduler.long_prefill_token_threshold or "no cap"),
            ("reserve_whole_prompt", scheduler.reserve_whole_prompt),
            ("watermark", f"{scheduler.watermark:.1%} of the KV blocks"),
            ("no_evict", scheduler.no_evict),
        ):
            self._note(name, value, self.resolved.origin(f"scheduler.{name}"))

    def _cache_dtype(self, dtype: str) -> str:
        asked = self.config.cache.dtype
        if asked == "auto":
            self._note("cache_dtype", dtype, "as dtype")
            return dtype
        self._note("cache_dtype", asked, self.resolved.origin("cache.dtype"))
        return asked

    def _switch(self, key: str, asked: bool | None, possible: bool) -> bool:
        name = key.rpartition(".")[2]
        if asked and not possible:
            raise self._refuse(key, asked, f"{self.runner}, which cannot do it", "leave it out, or set it to false")
        if asked is not None:
            self._note(name, asked, self.resolved.origin(key))
            return asked
        self._note(name, possible, "default" if possible else f"{self.runner} cannot do it")
        return possible

    def _max_model_len(self, chunked: bool) -> int:
        key, asked, most = "model.max_model_len", self.config.model.max_model_len, self.model.max_model_len
        if asked is not None and asked > most:
            raise self._refuse(key, asked, f"the model {self.model.name}, which takes {most} tokens", "lower it")
        value, why = (most, "the model's") if asked is None else (asked, self.resolved.origin(key))
        bounds = [(self.constraints.max_batch_context_tokens, "tokens of context in a batch")]
        if not chunked:
            bounds.append((self.constraints.max_num_batched_tokens, "tokens of one step, and a prompt is not split"))
        for bound, what in bounds:
            if bound is not None and value > bound:
                if asked is not None:
                    raise self._refuse(key, asked, f"{self.runner}, which takes {bound} {what}", "lower it")
                value, why = bound, f"{self.runner} takes {bound} {what}; the model's is {most}"
        self._note("max_model_len", value, why)
        return value

    def _tokens_and_seqs(self, chunked: bool, max_model_len: int) -> tuple[int, int]:
        tokens_key, seqs_key = "scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"
        asked_tokens, asked_seqs = self.config.scheduler.max_num_batched_tokens, self.config.scheduler.max_num_seqs
        most_tokens, most_seqs = self.constraints.max_num_batched_tokens, self.constraints.max_num_seqs
        if asked_seqs is not None and most_seqs is not None and asked_seqs > most_seqs:
            raise self._refuse(seqs_key, asked_seqs, f"{self.runner}, which takes {most_seqs}", "lower it")
        tokens, tokens_why = self._tokens(tokens_key, asked_tokens, most_tokens, asked_seqs, chunked, max_model_len)
        if asked_seqs is not None:
            seqs, seqs_why = asked_seqs, self.resolved.origin(seqs_key)
            if seqs > tokens:
                raise self._refuse(
                    seqs_key,
                    seqs,
                    f"max_num_batched_tokens = {tokens} ({tokens_why}), since every running request takes a token of "
                    f"each step",
                    "lower the one or raise the other",
                )
        else:
            seqs, seqs_why = MAX_NUM_SEQS, "default"
            if most_seqs is not None and most_seqs < seqs:
                seqs, seqs_why = most_seqs, f"{self.runner} takes {most_seqs}; default {MAX_NUM_SEQS}"
            if tokens < seqs:
                seqs, seqs_why = tokens, f"no more than max_num_batched_tokens; default {MAX_NUM_SEQS}"
        self._note("max_num_seqs", seqs, seqs_why)
        self._note("max_num_batched_tokens", tokens, tokens_why)
        return tokens, seqs

    def _tokens(
        self, key: str, asked: int | None, most: int | None, seqs: int | None, chunked: bool, max_model_len: int
    ) -> tuple[int, str]:
        multiple = self.constraints.chunk_multiple
        if asked is not None:
            if most is not None and asked > most:
                raise self._refuse(key, asked, f"{self.runner}, which takes {most}", "lower it")
            if not chunked and asked < max_model_len:
                raise self._refuse(
                    key,
                    asked,
                    f"max_model_len = {max_model_len} while prompts are not split",
                    f"raise it to {max_model_len}, set [model] max_model_len = {asked}, or turn chunked_prefill on",
                )
            if chunked and asked < multiple:
                raise self._refuse(
                    key, asked, f"{self.runner}, which takes prompts in multiples of {multiple}", "raise it"
                )
            return asked, self.resolved.origin(key)
        tokens, why = MAX_NUM_BATCHED_TOKENS, "default"
        for floor, reason in (
            (seqs or 0, "as many as max_num_seqs"),
            (0 if chunked else max_model_len, "as many as max_model_len, since prompts are not split"),
            (multiple if chunked else 0, f"{self.runner} takes prompts in multiples of {multiple}"),
        ):
            if floor > tokens:
                tokens, why = floor, f"{reason}; default {MAX_NUM_BATCHED_TOKENS}"
        if most is not None and most < tokens:
            tokens, why = most, f"{self.runner} takes {most}; default {MAX_NUM_BATCHED_TOKENS}"
        return tokens, why

    def _block_size(self) -> int:
        key, asked, allowed = "cache.block_size", self.config.cache.block_size, self.constraints.block_sizes
        if asked != "auto":
            if allowed and asked not in allowed:
                sizes = ", ".join(map(str, allowed))
                raise self._refuse(
                    key, asked, f"{self.runner}, which takes {sizes}", "leave it out, or choose one of these"
                )
            self._note("block_size", asked, self.resolved.origin(key))
            return asked
        if allowed:
            self._note("block_size", allowed[0], f"{self.runner} (its first allowed size; default {BLOCK_SIZE})")
            return allowed[0]
        self._note("block_size", BLOCK_SIZE, "default")
        return BLOCK_SIZE

    def _cache_size(self) -> None:
        for name in ("num_blocks", "memory_bytes", "memory_utilization"):
            value = getattr(self.config.cache, name)
            if value is not None:
                self._note(name, value, self.resolved.origin(f"cache.{name}"))
                return
        self._note("cache size", "auto", "settled when the worker has loaded the model")
