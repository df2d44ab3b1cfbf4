"""The rewritten graph of a model answers with the tokens of transformers' ``generate``, over steps of a paged cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.graph import dump_record, from_record, load_record, to_record
from enginebay.models import read_model_info, resolve_model
from enginebay.worker.probing.families import supports as supports_paging
from enginebay_runner_v2.capturable import supports
from support.graph_steps import SMALL, Paged, capture_tiny, paged, rewrite, state_of, tiny_step
from support.tiny_models import FAMILIES, make_model, reference

PROMPTS = [[(31 * index + 7 * place) % 199 for place in range(3 + 8 * index)] for index in range(4)]
"""Of 3 to 27 tokens: longer than the windows, the blocks and the chunks."""


@pytest.mark.parametrize("family", SMALL)
def test_a_rewritten_step_gives_the_reference_tokens(family: str) -> None:  # S13
    step = tiny_step(family, "linear")
    expected = reference(step.folder, PROMPTS, 6)
    record = load_record(dump_record(to_record(step.captured.graph_module, step.context.constants)))
    module = from_record(record)
    run = Paged(
        module,
        [*record.inputs, *record.constants],
        {name: record.origin(name) for name in record.constants},
        state_of(step.folder),
        step.captured.shapes,
        step.captured.groups,
    )
    assert run.generate(PROMPTS, 6) == expected


def test_a_captured_step_gives_the_reference_tokens_before_any_pass() -> None:
    step = tiny_step("gemma2")
    assert step.paged().generate(PROMPTS, 6) == reference(step.folder, PROMPTS, 6)


@pytest.mark.soak
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_gives_the_reference_tokens_or_is_refused(family: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", family)
    info = read_model_info(folder)
    if (why := supports(info)) is not None:
        assert supports_paging(info) is None
        assert why.startswith(f"architecture {info.architecture} is not captured as a graph: ")
        return
    captured, context = capture_tiny(folder)
    rewrite(captured, context)
    assert paged(captured, context, state_of(folder)).generate(PROMPTS, 6) == reference(folder, PROMPTS, 6)


@pytest.mark.soak
def test_the_real_model_gives_the_reference_tokens() -> None:
    folder = resolve_model(None)
    captured, context = capture_tiny(folder)
    rewrite(captured, context)
    run = paged(captured, context, state_of(folder))
    assert run.generate(PROMPTS, 6) == reference(folder, PROMPTS, 6)
