"""How a model is shared out to ranks, for any runner: who has what of each weight, and what ranks say to each other.

``shares`` counts heads, rows and layers (no torch), ``cuts`` takes a part of a weight, ``plan`` reads what transformers
says of a model, ``collectives`` sums and gathers. Import from these modules: this one imports none of them.
"""
