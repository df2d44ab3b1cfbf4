"""``enginebay generate`` over the fake runner: prompts from everywhere, what is printed, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from enginebay.cli import main
from enginebay.cli._prompts import read_prompts
from enginebay.engine import LLM
from enginebay.messages import SamplingParams
from enginebay.telemetry import read_spans
from support.fake_engines import ENGINEBAY, Installed
from support.repository import ROOT
from support.sampling_options import GIVEN

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def generate(fake: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``enginebay generate ARGUMENTS`` here; returns (exit code, stdout, stderr)."""

    def run(*arguments: str, stdin: bytes = b"", **options: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as caught:
            main(["generate", *arguments, *fake.arguments(**options)])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


def test_a_prompt_is_answered_through_the_chat_template(generate: Run) -> None:
    assert generate("say:Paris") == (0, "Paris\n", "")


@pytest.mark.parametrize("option", ["--top-k", "--max-tokens"])
def test_a_number_that_no_message_can_hold_is_one_line(generate: Run, option: str) -> None:  # E4
    code, out, err = generate("hi", option, str(2**70))
    assert code in (1, 2)
    assert out == ""
    assert str(2**70) in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_prompt_from_a_pipe(generate: Run) -> None:
    assert generate(stdin=b"say:Rome\n")[1] == "Rome\n"
    assert generate("-", stdin=b"say:Rome")[1] == "Rome\n"
    code, _, err = generate(stdin=b"\xff")
    assert (code, err) == (2, "enginebay: standard input is not UTF-8 text (byte 0)\n")


def test_json_has_what_was_promised(generate: Run) -> None:
    code, out, _ = generate("say:Oslo \u202e", "--json")
    assert code == 0
    assert out.isascii()
    got = json.loads(out)
    assert list(got) == ["prompt", "text", "token_ids", "finish_reason", "usage"]
    assert (got["prompt"], got["text"], got["finish_reason"]) == ("say:Oslo \u202e", "Oslo \u202e", "stop")
    assert bytes(got["token_ids"][:4]) == b"Oslo"
    assert got["usage"]["completion_tokens"] == 9


def test_raw_and_sampling_options(generate: Run) -> None:
    code, out, _ = generate("x", "--raw", "--max-tokens", "9", "--json")
    assert json.loads(out)["usage"]["prompt_tokens"] == 1
    assert (code, json.loads(out)["text"]) == (0, "the quick")
    assert generate("x", "--raw", "--stop", "quick")[1] == "the \n"
    assert generate("say:a", "--raw", "--ignore-eos", "--max-tokens", "3", "--json")[1].count("257") == 2
    code, out, err = generate("x", "--top-k", "3")
    assert (code, out, err) == (
        1,
        "",
        (
            "enginebay: runner 'fake' 1.0 does not serve top_k; it serves: grammar, logprobs, min_tokens, n, "
            "prompt_logprobs, seed\n"
        ),
    )


def test_a_model_without_a_template_completes(generate: Run, fake: Installed) -> None:
    (fake.model / "tokenizer_config.json").unlink()
    assert json.loads(generate("x", "--json", "--max-tokens", "1")[1])["usage"]["prompt_tokens"] == 1
    code, _, err = generate("x", "--chat")
    assert code == 2
    assert "has no chat template" in err


def test_a_system_message(generate: Run) -> None:
    plain = json.loads(generate("x", "--json", "--max-tokens", "1")[1])["usage"]["prompt_tokens"]
    system = json.loads(generate("x", "--json", "--max-tokens", "1", "--system", "be brief")[1])
    assert system["usage"]["prompt_tokens"] == plain + len("..system\nbe brief.\n") - 1
    code, _, err = generate("x", "--raw", "--system", "s")
    assert code == 2
    assert "--raw takes plain prompts: no --system, and no messages" in err


def test_a_file_of_prompts(generate: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("say:one\n\nsay:two\r\n")
    code, out, err = generate("--file", str(file), "--stats", "--progress")
    assert (code, out) == (0, "> say:one\none\n\n> say:two\ntwo\n\n")
    assert "2/2" in err
    assert "2 answers, 8 tokens in " in err
    code, out, _ = generate("--file", "-", "--json", stdin=file.read_bytes())
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["one", "two"]


def test_json_lines_of_prompts_and_conversations(generate: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    conversation = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "say:two"}]}
    file.write_text(json.dumps({"prompt": "say:one"}) + "\n" + json.dumps(conversation))
    _, out, _ = generate("--file", str(file), "--json")
    assert [(json.loads(line)["prompt"], json.loads(line)["text"]) for line in out.splitlines()] == [
        ("say:one", "one"),
        ("say:two", "two"),
    ]


def test_a_json_line_may_say_how_it_is_answered(generate: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "say:one", "max_tokens": 2}, {"prompt": "say:two"}, {"prompt": "say:three", "timeout": 1e-6}]
    file.write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = generate("--file", str(file), "--json", "--max-tokens", "4")
    told = [json.loads(line) for line in out.splitlines()]
    assert [(one["text"], one["finish_reason"]) for one in told[:2]] == [("on", "length"), ("two", "stop")]
    assert (code, told[2]["error"]) == (1, "deadline")


def test_the_lines_of_the_page_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "requests.md").read_text()
    file = tmp_path / "prompts.jsonl"
    file.write_text(page.split("```jsonl\n")[1].split("```")[0])
    first, second = read_prompts(file)
    assert (first.text, first.params, first.options) == ("One, two,", {"max_tokens": 4}, {"priority": 1})
    assert second.messages is not None
    assert (second.params, second.options) == ({"temperature": 1.0, "seed": 7}, {"tenant": "gold"})


def test_whatever_a_line_may_say_becomes_a_parameter(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    given = {name: value for name, (_, value) in GIVEN.items()}
    more = {"stop_token_ids": (3,), "skip_special_tokens": False}
    file.write_text(json.dumps({"prompt": "a", **given, **more}))
    [asked] = read_prompts(file)
    assert asked.params == {**given, **more}
    assert set(asked.params) == set(SamplingParams.__struct_fields__) - {"structured", "bad_words_token_ids"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "--file {file} has no prompts: write one a line"),
        ('{"prompt": "a"}\n{', "{file}, line 2: not JSON: Expecting property name enclosed in double quotes"),
        ('{"prompt": 5}', "{file}, line 1: prompt must be text, not int"),
        ('{"text": "a"}', '{file}, line 1: write {{"prompt": "…"}} or {{"messages": ['),
        (
            "a\n{b}\n" + '{"prompt": "c"}',
            "{file}, line 3: a JSON line among plain ones: the first line of a file says what",
        ),
        ('{"prompt": "a"}\nplain', "{file}, line 2: not JSON: Expecting value"),
        (
            '{"prompt": "a", "max_token": 3}',
            "{file}, line 1: unknown key 'max_token'. Did you mean 'max_tokens'? Known beside the prompt: bad_words, ",
        ),
        ('{"prompt": "a", "structured": {}}', "{file}, line 1: unknown key 'structured'."),
        ('{"prompt": "a", "max_tokens": "3"}', "{file}, line 1: Expected `int`, got `str` - at `$.max_tokens`"),
        ('{"prompt": "a", "priority": 0.5}', "{file}, line 1: Expected `int`, got `float` - at `$.priority`"),
        ('{"prompt": "a", "tenant": null}', "{file}, line 1: Expected `str`, got `null` - at `$.tenant`"),
        ('{"messages": []}', "{file}, line 1: messages must be a list with at least one message"),
        ('{"messages": [{"role": "user"}]}', "{file}, line 1: a message has a role and a content, both text"),
    ],
)
def test_files_that_cannot_be_used(generate: Run, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "p"
    file.write_text(content)
    code, out, err = generate("--file", str(file))
    assert (code, out) == (2, "")
    assert message.format(file=file) in err


def test_one_bad_request_of_a_batch_is_its_own(generate: Run, tmp_path: Path) -> None:  # E4
    file = tmp_path / "p"
    file.write_text("say:one\nfault\n" + "x" * 600 + "\nsay:two")
    code, out, _ = generate("--file", str(file), "--json", "--raw")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [line["text"] for line in lines] == ["one", "", "", "two"]
    assert lines[1]["error"] == "logits are NaN"
    assert lines[2]["error"].startswith("the prompt has 600 tokens, and a request may have 512")
    assert "error" not in lines[3]
    code, out, err = generate("fault", "--raw")
    assert (code, err) == (1, "enginebay: the request failed: logits are NaN\n")


def test_a_step_that_fails_is_an_internal_error(generate: Run) -> None:  # E2
    code, out, err = generate("crash")
    assert (code, out) == (70, "")
    assert err.startswith("enginebay: the engine stopped: rank 0")
    assert err.endswith("failed in execute_model: ValueError: asked to crash\n")
    assert err.count("\n") == 1


def test_a_start_that_fails(generate: Run) -> None:
    code, _, err = generate("x", fail="load_model")
    assert code == 3
    assert err.endswith("failed in load_model: ValueError: asked to fail in load_model\n")


def test_usage_errors(generate: Run, tmp_path: Path) -> None:
    assert generate("x", "--file", "y")[0] == 2
    assert "give a prompt or --file, not both" in generate("x", "--file", "y")[2]
    code, _, err = generate("x", "--trace", str(tmp_path))
    assert (code, err) == (
        2,
        f"enginebay: --trace {tmp_path}: cannot be written afresh: Is a directory; name a new file\n",
    )
    for empty in (("",), ("-",), ()):
        code, _, err = generate(*empty)
        assert code == 2
        assert err.endswith("Error: there is no prompt: give one, pipe one in, or name a file with --file\n")
    for option, value in (("--max-tokens", "0"), ("--temperature", "-1"), ("--top-p", "1.5"), ("--top-k", str(2**70))):
        code, _, err = generate("x", option, value)
        assert code == 2
        assert f"Invalid value for '{option}'" in err
    code, _, err = generate("--file", str(tmp_path / "nothing"))
    assert (code, err) == (2, f"enginebay: --file {tmp_path / 'nothing'} cannot be read: No such file or directory\n")


def test_what_a_model_says_cannot_move_the_cursor(generate: Run) -> None:
    assert generate("say:a\x1b[2Jb\u202ec")[1] == "a\\u001b[2Jb\\u202ec\n"


def test_stats_and_a_fresh_trace(generate: Run, tmp_path: Path) -> None:
    trace = tmp_path / "a trace.jsonl"
    trace.write_text("my notes")
    code, _, err = generate("x", "--trace", str(trace))
    assert (code, err) == (
        2,
        f"enginebay: --trace {trace}: the file that is there is no trace; remove it, or name another\n",
    )
    assert trace.read_text() == "my notes"
    trace.write_text("")
    assert generate("say:hello", "--trace", str(trace))[0] == 0
    code, _, err = generate("say:hello", "--stats", "--trace", str(trace))
    assert code == 0
    assert "6 tokens in " in err
    assert " tokens/s, " in err
    assert err.endswith(" ms to the first token\n")
    spans = read_spans(trace)
    assert [span.name for span in spans].count("engine.step") >= 6, "not every step of the run was recorded"
    assert [span.name for span in spans].count("engine.start") == 1, "the older trace is still there"
    names = {span.name for span in spans}
    assert {"engine.start", "worker.load_model", "engine.step", "chat model", "decode"} <= names


def test_a_deadline_names_the_option(generate: Run) -> None:
    code, _, err = generate("say:hi", "--timeout", "0.000001")
    assert (code, err.splitlines()[-1]) == (1, "enginebay: the request failed: deadline (--timeout 1e-06 s)")


def test_stats_count_from_when_the_engine_has_the_request(generate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the prompt takes the template's process, which the first conversation starts: the trace has none of it."""
    now = [100.0]
    asked = LLM.chat_stream

    def slow(*arguments: Any, **options: Any) -> Any:
        now[0] += 50.0
        return asked(*arguments, **options)

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    monkeypatch.setattr(LLM, "chat_stream", slow)
    monkeypatch.setattr(import_module("enginebay.cli.generate"), "time", SimpleNamespace(monotonic=clock))
    _, _, err = generate("say:hello", "--stats")
    assert err == "6 tokens in 0.50 s, 12.0 tokens/s, 250 ms to the first token\n"


def test_a_trace_never_replaces_what_it_did_not_write(generate: Run, tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("")
    link.symlink_to(target)
    code, _, err = generate("x", "--trace", str(link))
    assert (code, err) == (
        2,
        f"enginebay: --trace {link}: cannot be written afresh: Too many levels of symbolic links; name a new file\n",
    )
    assert link.is_symlink()
    code, _, err = generate("x", "--trace", "/dev/null")
    assert (code, err) == (2, "enginebay: --trace /dev/null: is not a regular file; name a new file\n")
    code, _, err = generate("x", "--trace", os.fsdecode(os.fsencode(tmp_path / "x") + b"\xff"))
    assert code == 2
    assert err.endswith("the name is not UTF-8 text; name another file\n")


def test_an_older_trace_stays_when_nothing_is_started(generate: Run, tmp_path: Path) -> None:
    trace = tmp_path / "\N{GRINNING FACE}.jsonl"
    assert generate("say:hello", "--trace", str(trace))[0] == 0
    old = trace.read_bytes()
    assert old
    assert generate("x", "--trace", str(trace), "--set", "cache.block_size=nonsense")[0] == 2
    elsewhere = f"telemetry.file={json.dumps(str(tmp_path / 'other'))}"
    assert generate("say:hello", "--trace", str(trace), "--set", elsewhere)[0] == 0
    assert trace.read_bytes() == old
    assert (tmp_path / "other").stat().st_size > 0


def test_ctrl_c_ends_everything(fake: Installed) -> None:
    child = subprocess.Popen(
        [*ENGINEBAY, "generate", "x", "--raw", "--max-tokens", "400", *fake.arguments(step_seconds=0.05)],
        env=fake.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert os.read(child.stdout.fileno(), 1) == b"t"
    tree = [child.pid, *(process.pid for process in psutil.Process(child.pid).children(recursive=True))]
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err.decode()) == (130, "\nstopping; Ctrl-C again ends at once\ninterrupted\n")
    until = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in tree):
        assert time.monotonic() < until, tree
        time.sleep(0.02)


def test_a_second_ctrl_c_ends_at_once(fake: Installed) -> None:
    """While a step of a minute is running, which the first one waits for."""
    child = subprocess.Popen(
        [*ENGINEBAY, "generate", "x", "--raw", *fake.arguments(step_seconds=60)],
        env=fake.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    time.sleep(3)  # nothing tells from outside that it is in the step; earlier, it is in the imports: the same to us
    child.send_signal(signal.SIGINT)
    line = b"\nstopping; Ctrl-C again ends at once\n"
    assert os.read(child.stderr.fileno(), len(line)) == line
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=5)
    assert (child.returncode, err) == (130, b"")


def test_termination_has_its_own_code(fake: Installed) -> None:
    child = subprocess.Popen(
        [*ENGINEBAY, "generate", "x", "--raw", "--max-tokens", "400", *fake.arguments(step_seconds=0.05)],
        env=fake.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert os.read(child.stdout.fileno(), 1) == b"t"
    child.terminate()
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err.decode()) == (143, "terminated\n")
