"""KV-cache arithmetic."""


class KVCacheManager: ...
