"""Names of blocks: what tells them apart, and that every process agrees."""

from __future__ import annotations

import subprocess
import sys

from enginebay.kvcache import block_hash, root_hash

KNOWN = "cdf0252b"


def test_everything_that_counts_is_in_the_name() -> None:  # K2, K5
    root = root_hash("salt", "adapter")
    names = {
        block_hash(root, (1, 2)),
        block_hash(root, (2, 1)),
        block_hash(root, (1, 2, 0)),
        block_hash(block_hash(root, (1, 2)), (1, 2)),
        block_hash(root_hash("", "adapter"), (1, 2)),
        block_hash(root_hash("salt", ""), (1, 2)),
        block_hash(root_hash("saltadapter", ""), (1, 2)),
        block_hash(root, (1, 2), b"an image"),
        block_hash(root, (1, 2), b"another image"),
    }
    assert len(names) == 9
    assert {len(name) for name in names} == {32}  # sha256: nobody finds two contents of one name


def test_other_hash_seeds_give_the_same_name() -> None:  # K5
    code = "from enginebay.kvcache import *; print(block_hash(root_hash('s', 'a'), (1, 2, 99999)).hex())"
    names = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert names == {block_hash(root_hash("s", "a"), (1, 2, 99999)).hex()}


def test_the_name_does_not_drift() -> None:  # K5: recorded, so that a change of the format is seen
    assert block_hash(root_hash("", ""), tuple(range(16))).hex()[:8] == KNOWN
