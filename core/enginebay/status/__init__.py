"""How the workers stand: set by whoever sees something, numbered, and brought to sinks, which may be slow or down.

The rules are those of the Kubernetes kubelet's status manager. Pure are: which phase may follow which
(``_transitions``), how conditions and stages go on (``_conditions``, ``_stages``), the form in which statuses are
compared (``_normal``), what is written where others write too (``_merge``), waiting times (``backoff``), a group as one
(``groups``), the times of a start (``latency``). ``book`` holds all statuses, ``sync`` brings them to one sink, and
``manager`` runs a thread for each; ``opening`` makes those that a config names.
"""

from enginebay.status.backoff import BackOff
from enginebay.status.book import Entry, StatusBook
from enginebay.status.groups import GroupStatus, group_status
from enginebay.status.latency import StartSample, StartTimes, start_of
from enginebay.status.manager import StatusManager
from enginebay.status.opening import open_sinks
from enginebay.status.sync import FULL_PASS, SinkHealth, SinkSync

__all__ = [
    "FULL_PASS",
    "BackOff",
    "Entry",
    "GroupStatus",
    "SinkHealth",
    "SinkSync",
    "StartSample",
    "StartTimes",
    "StatusBook",
    "StatusManager",
    "group_status",
    "open_sinks",
    "start_of",
]
