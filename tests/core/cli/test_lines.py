"""Lines of the log between the pieces of an answer: on lines of their own where both go to one place."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import logging
from enginebay.cli._lines import shown

with shown() as answer:
    answer.text("The capital")
    answer.text("")
    logging.getLogger("enginebay").warning("rank %d was killed", 0)
    logging.getLogger("enginebay").warning("and again")
    logging.getLogger("enginebay").info("not told")
    answer.text(" of France")
    answer.text(" is Paris.\\n")
    logging.getLogger("enginebay").warning("at its end")
logging.getLogger("enginebay").warning("later")
"""


def _run(stderr: int) -> tuple[str, str | None]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=True
    )
    return done.stdout, done.stderr


def test_a_line_of_the_log_ends_the_text_before_it() -> None:
    said, _ = _run(subprocess.STDOUT)
    assert said == "The capital\nrank 0 was killed\nand again\n of France is Paris.\nat its end\nlater\n"


def test_elsewhere_each_stream_is_as_it_is() -> None:
    out, err = _run(subprocess.PIPE)
    assert out == "The capital of France is Paris.\n"
    assert err == "rank 0 was killed\nand again\nat its end\nlater\n"
