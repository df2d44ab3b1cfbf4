"""Runner ``v1``: transformers' own modules, eager, over a paged KV cache. ``plugin`` is its light entry point."""
