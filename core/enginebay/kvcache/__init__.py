"""KV-cache arithmetic: which block holds which tokens, plain Python, without torch and without a device.

Five subjects, one file each: the free list (``_free_list``), the pool with its reference counts and its index of cached
blocks (``_pool``), the names that blocks have by content (``_hashes``), the blocks of one request
(``_sequence``), and the manager that schedulers use.
"""

from enginebay.kvcache._hashes import block_hash, root_hash
from enginebay.kvcache._manager import KVCacheManager
from enginebay.kvcache._pool import BlockPool
from enginebay.kvcache._sequence import KVSequence, PrefixHit

__all__ = ["BlockPool", "KVCacheManager", "KVSequence", "PrefixHit", "block_hash", "root_hash"]
