"""Strangers' programs and files, run in child processes with limits on memory, time, output and what they can open.

Templates and tokenizer files are programs: they can ask for any amount of either. What runs them here gets data in and
gives data back, and dies alone. No jinja2 and no tokenizers in our own process comes of importing this.
"""

from enginebay.limited._helper import Helper, HelperFailed, OverLimit
from enginebay.limited._limits import die_with_parent, limit_memory

__all__ = ["Helper", "HelperFailed", "OverLimit", "die_with_parent", "limit_memory"]
