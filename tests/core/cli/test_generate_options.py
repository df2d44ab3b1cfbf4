"""The options of ``generate`` for sampling parameters: what they become, what is printed, and how the help is read."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from enginebay.cli import group, main
from enginebay.cli._answers import complain, print_json, print_logprobs
from enginebay.cli._sampling import sampling_params
from enginebay.engine import Choice, Completion
from enginebay.engine.admission.limits import MAX_CHOICES, MAX_LOGPROBS, AdmissionLimits
from enginebay.engine.admission.params import check_params
from enginebay.engine.front.front import Front
from enginebay.errors import InvalidRequest
from enginebay.messages import FinishReason, SamplingParams, TokenLogprob, Usage
from support.fake_engines import Installed
from support.sampling_options import GIVEN

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def generate(fake: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``enginebay generate ARGUMENTS`` here; returns (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(SystemExit) as caught:
            main(["generate", *arguments, *fake.arguments()])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def params_of(command: str, *arguments: str) -> SamplingParams:
    """What these arguments of a command become."""
    found = group.get_command(click.Context(group), command)
    assert found is not None
    options = found.make_context(command, [*arguments]).params
    return sampling_params(**{name: options[name] for name in SamplingParams.__struct_fields__ if name in options})


NOT_OFFERED = {"stop_token_ids", "bad_words_token_ids", "skip_special_tokens"} | {"structured"}  # four options make it
NOT_IN_CHAT = {"n", "logprobs", "prompt_logprobs"}


def test_every_parameter_has_an_option_or_is_left_out_on_purpose() -> None:
    assert GIVEN.keys() | NOT_OFFERED == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_becomes_its_parameter(name: str) -> None:
    arguments, expected = GIVEN[name]
    for command in ("generate", "chat"):
        if command == "chat" and name in NOT_IN_CHAT:
            continue
        assert getattr(params_of(command), name) == getattr(SamplingParams(), name)
        assert params_of(command, *arguments) == SamplingParams(**{name: expected})


@pytest.mark.parametrize("value", ["5", "x=1", "5=", "=1", "5=much"])
def test_a_bias_that_is_none(generate: Run, value: str) -> None:
    code, out, err = generate("hi", "--logit-bias", value)
    assert (code, out) == (2, "")
    assert f"{value!r} is not a token id, '=' and a number, as in 198=-5" in err


def test_several_answers_are_numbered(generate: Run) -> None:
    assert generate("say:no %", "--n", "2", "--temperature", "1") == (0, "[0] no 0\n[1] no 1\n", "")
    code, out, _ = generate("say:no %", "--n", "2", "--temperature", "1", "--json", "--stats")
    got = json.loads(out)
    assert (code, got["text"], [one["text"] for one in got["choices"]]) == (0, "no 0", ["no 0", "no 1"])
    assert got["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "2"], "with --temperature 0 all choices are equal: set it above 0, or --n to 1"),
        (["--timeout", "nan"], "Invalid value for '--timeout': 'nan' is not a finite number"),
        (["--timeout", "inf"], "Invalid value for '--timeout': 'inf' is not a finite number"),
        (["--temperature", "nan"], "Invalid value for '--temperature': 'nan' is not a finite number"),
        (["--repetition-penalty", "nan"], "Invalid value for '--repetition-penalty': 'nan' is not a finite number"),
        (["--stop", ""], "Invalid value for '--stop': it must not be empty"),
        (["--bad-word", ""], "Invalid value for '--bad-word': it must not be empty"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "Invalid value for '--logit-bias': token 5 is given twice"),
    ],
)
def test_what_no_engine_takes_is_refused_before_one_is_started(
    generate: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(Front, "open", lambda *arguments, **options: pytest.fail("it was started"))
    code, out, err = generate("hi", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_the_bounds_are_those_of_the_engine() -> None:
    command = group.get_command(click.Context(group), "generate")
    assert command is not None
    ranges = {
        option.name: (option.type.min, option.type.max)
        for option in command.params
        if isinstance(option.type, click.IntRange | click.FloatRange)
    }
    assert ranges["n"] == (1, MAX_CHOICES)
    assert ranges["logprobs"] == ranges["prompt_logprobs"] == (0, MAX_LOGPROBS)
    limits = AdmissionLimits(
        vocab_size=9, runner="r", features=frozenset({"penalties"}), check_fits=lambda prompt, answer: None
    )
    for name in ("presence_penalty", "frequency_penalty"):
        for bound in ranges[name]:
            assert bound is not None
            check_params(SamplingParams(**{name: float(bound)}), limits)
            with pytest.raises(InvalidRequest, match=name):
                check_params(SamplingParams(**{name: bound * 1.001}), limits)


def test_the_choice_that_failed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    good = Choice(index=0, text="a", token_ids=(97,), finish_reason=FinishReason.STOP)
    bad = Choice(index=1, text="", token_ids=(), finish_reason=FinishReason.ERROR, error="logits are NaN")
    answer = Completion(request_id="r", prompt="p", prompt_token_ids=(1,), choices=(good, bad), usage=Usage())
    print_json("p", answer, str)
    complain(answer, shaped=False)
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [choice.get("error") for choice in told["choices"]] == [None, "logits are NaN"]
    assert told["error"] == "logits are NaN"
    assert err == "enginebay: choice 1 failed: logits are NaN\n"


@pytest.mark.parametrize(
    ("shaped", "finish", "said"),
    [
        (
            True,
            FinishReason.LENGTH,
            "{who} was cut after 2 tokens, by --max-tokens or the model's length, and its shape may",
        ),
        (True, FinishReason.STOP, ""),
        (False, FinishReason.LENGTH, ""),  # of plain text there is always more
    ],
)
def test_an_answer_with_a_shape_that_was_cut_is_told(
    shaped: bool, finish: FinishReason, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = Choice(index=1, text="ab", token_ids=(97, 98), finish_reason=finish)
    whole = Choice(index=0, text="a", token_ids=(97,), finish_reason=FinishReason.STOP)
    for choices, who in (((cut,), "the answer"), ((whole, cut), "choice 1")):
        answer = Completion(request_id="r", prompt="p", prompt_token_ids=(1,), choices=choices, usage=Usage())
        complain(answer, shaped=shaped)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == bool(said)
        assert all(line.startswith(f"enginebay: {said.format(who=who)}") for line in lines)


def test_log_probabilities_are_a_table(generate: Run) -> None:
    code, out, _ = generate("say:a", "--raw", "--logprobs", "2", "--prompt-logprobs", "0")
    assert code == 0
    assert out.splitlines() == [
        "a",
        "",
        "the prompt, from its second token on:",
        "  token  logprob  rank  likeliest",
        '  "a"    -0.875   2',
        '  "y"    -9.875   2',
        '  ":"    -9.125   2',
        '  "a"    -3.500   2',
        "",
        "the answer:",
        "  token         logprob  rank  likeliest",
        '  "a"           -4.375   2     "\\u0005" -0.250  "\\u0006" -0.500',
        '  "<|im_end|>"  -6.875   2     "\\u0006" -0.250  "\\u0007" -0.500',
    ]


def test_log_probabilities_in_json(generate: Run, tmp_path: Path) -> None:
    arguments = ["--raw", "--logprobs", "1", "--prompt-logprobs", "0", "--max-tokens", "1"]
    code, out, _ = generate("xy", *arguments, "--json")
    got = json.loads(out)
    assert code == 0
    assert got["logprobs"] == [
        {
            "token_id": 116,
            "token": "t",
            "logprob": -2.625,
            "rank": 2,
            "top": [{"token_id": 2, "token": "\x02", "logprob": -0.25}],
        }
    ]
    assert got["prompt_logprobs"][0] is None
    assert [entry["token"] for entry in got["prompt_logprobs"][1:]] == ["y"]
    file = tmp_path / "p"
    file.write_text("xy\n")
    assert json.loads(generate("--file", str(file), *arguments, "--json")[1]) == got


def test_what_cannot_come_is_a_number_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    told = TokenLogprob(token_id=1, logprob=-0.1, rank=1, top=((1, -0.1), (2, -math.inf)))
    choice = Choice(index=0, text="a", token_ids=(1,), finish_reason=FinishReason.STOP, logprobs=(told,))
    answer = Completion(request_id="r", prompt="p", prompt_token_ids=(1,), choices=(choice,), usage=Usage())
    print_json("p", answer, lambda ids: "\u202e")
    line = capsys.readouterr().out
    assert line.isascii()
    assert json.loads(line)["logprobs"][0]["top"][1]["logprob"] == -9999.0
    print_logprobs(answer, lambda ids: "\u202e\n\t\x1b")
    table = capsys.readouterr().out
    assert "-inf" in table
    assert table.splitlines()[3].startswith('  "\\u202e\\n\\t\\u001b"  -0.100')


def test_the_way_it_is_scheduled_arrives(generate: Run, tmp_path: Path) -> None:
    code, _, err = generate("hi", "--timeout", "0.000001")
    assert (code, err) == (1, "enginebay: the request failed: deadline (--timeout 1e-06 s)\n")
    file = tmp_path / "p"
    file.write_text("a\nb\n")
    code, _, err = generate("--file", str(file), "--timeout", "0.000001", "--priority", "1", "--tenant", "t")
    assert (code, err) == (1, "enginebay: the request failed: deadline (--timeout 1e-06 s)\n" * 2)
    code, _, err = generate("hi", "--priority", str(2**31))
    assert (code, err) == (1, "enginebay: priority must be an integer within 32 bits, not 2147483648\n")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_the_help_is_in_sections(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings[:4] == [
        "Options:",
        "How tokens are drawn:",
        "What is discouraged, or never comes:",
        "Length and end:",
    ]
    found = group.get_command(click.Context(group), command)
    assert found is not None
    flags = [option for parameter in found.params for option in parameter.opts if option.startswith("--")]
    assert [flag for flag in flags if text.count(f"{flag} ") == 0 and f"{flag}\n" not in text] == []
