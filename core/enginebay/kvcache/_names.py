"""The names of a sequence's full blocks: each is computed once in its life, and none before somebody asks."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, final

from enginebay.kvcache._hashes import block_hash, root_hash
from enginebay.kvcache._sequence import KVSequence

_SUFFIXES: Final = (b"", *(bytes((group,)) for group in range(1, 256)))


def suffix_of(group: int) -> bytes:
    """What a block's hash is followed by in the index: nothing in group 0, so that one group alone pays nothing."""
    return _SUFFIXES[group]


@final
class Names:
    """Names blocks of one size, computed by these ``weights`` (see ``KVCacheManager``)."""

    def __init__(self, block_size: int, weights: str) -> None:
        self._block_size = block_size
        self._weights = weights

    def until(self, sequence: KVSequence, count: int) -> list[bytes]:
        """The hashes of at least the first ``count`` full blocks. The root comes before the first."""
        names = sequence.names
        if names is None:
            sequence.root = _root(sequence.salt, sequence.adapter, self._weights)
            names = sequence.names = []
        size, extra_keys = self._block_size, sequence.extra_keys
        parent = names[-1] if names else sequence.root
        for start in range(len(names) * size, count * size, size):
            extra = b"" if extra_keys is None else extra_keys(start, start + size)
            parent = block_hash(parent, sequence.tokens(start, start + size), extra)
            names.append(parent)
        return names


@lru_cache(maxsize=1024)
def _root(salt: str, adapter: str, weights: str) -> bytes:
    return root_hash(salt, adapter, weights) if weights else root_hash(salt, adapter)
