"""A model runner for enginebay that reckons its tokens from the KV cache, without a model; on numpy alone."""
