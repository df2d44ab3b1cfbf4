"""Runner ``v2``: the model captured as a graph, rewritten, and replayed without Python. See ``plugin``."""
