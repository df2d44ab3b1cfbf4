"""Names of full blocks by content: a chain of sha256, so that equal names mean equal tokens all the way back.

Nothing of the process goes in (no ``hash()``, no address), so every process gives a block the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Final

HASH_BYTES: Final = 32
_VERSION = b"enginebay kv 1"


def root_hash(*extra: str) -> bytes:
    """The 32 bytes that a chain starts from: what, beside the tokens, must be equal for a block to be shared.

    ``extra`` are the request's salt, adapter and the like, in a fixed order; each is written with its length, so
    that ("ab", "c") and ("a", "bc") differ.
    """
    digest = sha256(_VERSION)
    for part in extra:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def block_hash(parent: bytes, token_ids: Sequence[int], extra: bytes = b"") -> bytes:
    """The 32-byte name of a full block after the block named ``parent`` (or after a root).

    ``extra`` names what the tokens alone do not say: an image whose placeholders stand in this block.
    """
    return sha256(parent + _packer(len(token_ids)).pack(*token_ids) + extra).digest()


@lru_cache(maxsize=64)
def _packer(count: int) -> Struct:
    return Struct(f"<{count}q")
