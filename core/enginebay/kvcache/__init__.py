"""KV-cache arithmetic: which block holds which tokens, plain Python, without torch and without a device.

One subject a file: the free list (``_free_list``), the pool with its reference counts and its index of cached blocks
(``_pool``), the names that blocks have by content (``_hashes``), the groups of layers and what requests need of them
(``_shape``), the blocks of one request (``_sequence``), the longest beginning that all groups have (``_prefix``), what
happened to the content (``_events``), the manager that schedulers use, and the look at it that policies have
(``_probe``).
"""

from enginebay.kvcache._events import CacheCleared, CacheEvent, CacheEventBatch, CacheRemoved, CacheStored
from enginebay.kvcache._hashes import block_hash, root_hash
from enginebay.kvcache._manager import KVCacheManager
from enginebay.kvcache._pool import BlockPool
from enginebay.kvcache._sequence import BlockIds, ExtraKeys, KVSequence, PrefixHit
from enginebay.kvcache._shape import NULL_BLOCK, CacheShape, GroupSpec

__all__ = [
    "NULL_BLOCK",
    "BlockIds",
    "BlockPool",
    "CacheCleared",
    "CacheEvent",
    "CacheEventBatch",
    "CacheRemoved",
    "CacheShape",
    "CacheStored",
    "ExtraKeys",
    "GroupSpec",
    "KVCacheManager",
    "KVSequence",
    "PrefixHit",
    "block_hash",
    "root_hash",
]
