"""The shape of a KV cache: groups of layers, what each sees, and how many blocks requests need of it. Arithmetic.

A token of a group of kind "full" sees all tokens before it; one of kind "sliding_window" the last ``window``, its own
included, so that blocks behind the window are of no use to anybody any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from enginebay.errors import ConfigError

GroupKind = Literal["full", "sliding_window"]
NULL_BLOCK: Final = 0
"""The block id that stands for one that is not there: reserved wherever a group has a window, and never read."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers whose blocks are handed out together. ``block_size`` and ``window`` are in tokens."""

    block_size: int
    kind: GroupKind = "full"
    window: int | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"[cache] block_size is {self.block_size}: a block holds at least one token")
        if self.kind not in get_args(GroupKind):
            known = ", ".join(get_args(GroupKind))
            raise ConfigError(f"a KV group has the kind {self.kind!r:.40}, and the known ones are {known}")
        if (self.window is not None) is not (self.kind == "sliding_window"):
            raise ConfigError(f"a KV group of kind {self.kind} has window {self.window}: sliding ones have one, alone")
        if self.window is not None and self.window < 1:
            raise ConfigError(f"a KV group has a window of {self.window} tokens: a token sees at least itself")

    @classmethod
    def of(cls, *, block_size: int, kind: str, window: int | None) -> GroupSpec:
        """The same from a runner's words. Raises ``ConfigError`` for a kind that is not known."""
        return cls(block_size, cast("GroupKind", kind), window)

    def first_seen(self, num_computed_tokens: int) -> int:
        """The first block that the token after so many, or any later one, can see."""
        if self.window is None:
            return 0
        return max(0, num_computed_tokens - self.window + 1) // self.block_size


@dataclass(frozen=True, slots=True)
class CacheShape:
    """All groups, which share one pool, and ``max_step_tokens``: the most tokens of one request in flight at once.

    None: nobody is to give way, so a request is given blocks for all of its tokens at once, in groups with a window
    too. Raises ``ConfigError`` for groups whose blocks differ in size.
    """

    groups: tuple[GroupSpec, ...]
    max_step_tokens: int | None = None
    block_size: int = field(init=False)
    _most: tuple[int | None, ...] = field(init=False, repr=False)
    """For each group the most blocks that one request holds at once, however long it is; None: all of its tokens'."""

    def __post_init__(self) -> None:
        sizes = sorted({group.block_size for group in self.groups})
        if len(sizes) != 1:
            raise ConfigError(f"the KV groups have blocks of {sizes} tokens; this version needs one size")
        object.__setattr__(self, "block_size", sizes[0])
        object.__setattr__(self, "_most", tuple(map(self._most_held, self.groups)))

    @property
    def has_windows(self) -> bool:
        """Whether blocks may come back before a request ends."""
        return any(group.window is not None for group in self.groups)

    def reserved(self, reserved_blocks: int) -> int:
        """The blocks that are never handed out: those asked for, and the null block where there is a window."""
        return max(reserved_blocks, NULL_BLOCK + 1 if self.has_windows else 0)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of one group that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def fresh(self, num_cached_tokens: int, num_tokens: int) -> list[int]:
        """For each group, how many blocks a sequence of ``num_tokens`` is given beside those that are cached of it."""
        every, cached = -(-num_tokens // self.block_size), num_cached_tokens // self.block_size
        counts = []
        for group, most in zip(self.groups, self._most, strict=True):
            end = every if most is None else min(every, group.first_seen(num_cached_tokens) + most)
            counts.append(end - cached if end > cached else 0)
        return counts

    def most_blocks(self, num_tokens: int) -> int:
        """The most blocks that a request of so many tokens holds at once, in all groups together."""
        every = self.blocks_for(num_tokens)
        return sum(every if most is None else min(every, most) for most in self._most)

    def most_tokens(self, num_blocks: int, limit: int) -> int:
        """The longest request, of at most ``limit`` tokens, that so many blocks are enough for."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.most_blocks(middle) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _most_held(self, group: GroupSpec) -> int | None:
        if group.window is None or self.max_step_tokens is None:
            return None
        in_use = group.window - 1 + self.max_step_tokens
        return (in_use + self.block_size - 2) // self.block_size + 1
