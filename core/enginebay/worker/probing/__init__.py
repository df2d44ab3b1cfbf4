"""What runners that page the keys and values of transformers' modules share: which models run exactly, and on what.

``families`` reads config.json (no torch), ``probe`` looks at what reaches attention, ``groups`` lays out the KV cache
from what it saw. Import from these modules: this one imports none of them.
"""
