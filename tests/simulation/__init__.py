"""The simulation: the real core, scheduler, ledger and KV cache on fake time, transport, processes and workers.

One seed is one schedule of requests and faults (``plan``), one run of it is a ``World`` (``world``). Workers compute
each token from the contents of a fake KV cache (``workers``), so a block that is shared, freed or kept wrongly shows
in the tokens; ``reference`` says what each request yields undisturbed, and ``invariants`` what holds after each event.
``python -m simulation`` runs many seeds; ``minimise`` makes a failing one small.
"""
