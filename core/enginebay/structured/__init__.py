"""Grammars for constrained answers: compiled within limits and off the step loop, advanced at the commit alone.

One small interface (``GrammarCompiler``, ``GrammarState``), one library behind it, and the store of the live requests'
grammars. Importing this loads no grammar library.
"""

from enginebay.structured._compiler import HelperCompiler
from enginebay.structured._interfaces import (
    GrammarCompiler,
    GrammarFailed,
    GrammarRejected,
    GrammarState,
    GrammarUnavailable,
)
from enginebay.structured._store import GrammarStore

__all__ = [
    "GrammarCompiler",
    "GrammarFailed",
    "GrammarRejected",
    "GrammarState",
    "GrammarStore",
    "GrammarUnavailable",
    "HelperCompiler",
]
