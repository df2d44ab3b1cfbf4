"""The conformance kit in short, for executors whose starts take seconds each."""

HEART = "aligned or rank_without_data or late or megabytes or every_worker or last_rank"
"""Of the executors' suite what needs one start in all; pytest's ``-k``. The whole of it is a soak."""
