"""docs/requests.md against the code: each parameter with its default, feature and bounds, each option once."""

from __future__ import annotations

import re

import pytest

from enginebay.engine.admission import limits
from enginebay.engine.admission.options import BatchOptions, RequestOptions
from enginebay.messages import SamplingParams
from support.fake_engine import FEATURES
from support.repository import ROOT

PAGE = (ROOT / "docs" / "requests.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the first table under a heading: what stands in the first cell, and the rest."""
    table = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in cells}


PARAMETERS = rows("Sampling parameters")


def test_every_parameter_stands_there_in_order() -> None:
    assert set(PARAMETERS) == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", PARAMETERS)
def test_its_default_is_true(name: str) -> None:
    assert PARAMETERS[name][0] == f"`{getattr(SamplingParams(), name)!r}`"


def test_features_are_those_that_runners_declare() -> None:
    named = {cells[3].strip("`") for cells in PARAMETERS.values()} - {""}
    assert named == FEATURES - {"batch_invariant"}


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("n", f"1 to {limits.MAX_CHOICES}"),
        ("logit_bias", f"{limits.MAX_BIASED_TOKENS:,} ids of the vocabulary, finite"),
        ("bad_words", f"{limits.MAX_BAD_WORDS} words of {limits.MAX_STOP_CHARS} characters"),
        ("bad_words_token_ids", f"{limits.MAX_BAD_WORD_TOKENS:,} tokens in all"),
        ("stop", f"{limits.MAX_STOP_STRINGS} strings of {limits.MAX_STOP_CHARS} characters"),
        ("stop_token_ids", f"{limits.MAX_STOP_TOKENS:,} ids of the vocabulary"),
        ("logprobs", f"0 to {limits.MAX_LOGPROBS}"),
        ("prompt_logprobs", f"0 to {limits.MAX_LOGPROBS}"),
    ],
)
def test_its_bounds_are_true(name: str, bounds: str) -> None:
    assert PARAMETERS[name][2] == bounds


def test_every_option_stands_there() -> None:
    options = rows("Options beside them")
    assert set(options) == set(RequestOptions.__annotations__) == {*BatchOptions.__annotations__, "request_id"}
    assert options["extra"][1] == f"{limits.MAX_EXTRA_BYTES // 1024} KiB in all"
    assert options["tenant"][1] == f"{limits.MAX_ID_CHARS} characters"


def test_the_bounds_of_text_are_true() -> None:
    text = " ".join(PAGE.split())
    found = re.search(r"above (\d+) bytes for each token that a request may have, and above ([\d,]+) bytes", text)
    assert found is not None
    assert [int(number.replace(",", "")) for number in found.groups()] == [
        limits.MAX_BYTES_PER_TOKEN,
        limits.MAX_PROMPT_BYTES,
    ]
