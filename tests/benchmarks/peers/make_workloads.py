"""Write ``workloads.json``: token-id prompts cut from Python's own documentation text.

Every workload has four prompt sets of equal shape (one warm-up, three timed), each cut from a different part of the
text, so that no run finds an earlier run's prompt in a prefix cache.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path
from pydoc_data import topics
from typing import Any

SETS, SEED = 4, 20240607


class Text:
    """Hands out one part of the text after the other."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._place = 0

    def cut(self, n: int) -> list[int]:
        """The next ``n`` tokens."""
        self._place += n
        assert self._place <= len(self._ids), "text too short"
        return self._ids[self._place - n : self._place]


def workloads(text: Text) -> dict[str, Any]:
    """All of them, in a fixed order: a change of one moves the prompts of those behind it."""
    rng = random.Random(SEED)
    lengths = [rng.randint(32, 256) for _ in range(64)]
    made: dict[str, Any] = {
        "W1": {"max_tokens": 128, "sets": [[text.cut(128)] for _ in range(SETS)]},
        "W2": {"max_tokens": 128, "sets": [[text.cut(n) for n in lengths] for _ in range(SETS)]},
        "W3": {"max_tokens": 1, "sets": [[text.cut(512) for _ in range(32)] for _ in range(SETS)]},
        "W4": {"max_tokens": 32, "sets": []},
        "W5": {"max_tokens": 1, "sets": [[text.cut(128)]]},
    }
    for _ in range(SETS):
        prefix = text.cut(384)
        made["W4"]["sets"].append([prefix + text.cut(32) for _ in range(64)])
    return made


def main() -> None:
    """Read the tokenizer, cut, write."""
    from transformers import AutoTokenizer

    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("model", help="folder with the tokenizer")
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    text = re.sub(r"\n{3,}", "\n\n", text)
    ids = AutoTokenizer.from_pretrained(args.model)(text, add_special_tokens=False)["input_ids"]
    print("tokens in the text:", len(ids))
    made = workloads(Text(ids))
    args.out.write_text(json.dumps(made))
    print({name: (len(w["sets"]), len(w["sets"][0]), sum(map(len, w["sets"][0]))) for name, w in made.items()})


if __name__ == "__main__":
    main()
