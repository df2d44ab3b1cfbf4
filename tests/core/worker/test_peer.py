"""Weights from one worker to another: the same bits, or an error on both sides; nobody waits for who has gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.errors import StartFailed
from enginebay.messages import WeightsSent
from enginebay.worker import peer

Weights = dict[str, torch.Tensor]


def some_weights() -> Weights:
    generator = torch.Generator().manual_seed(3)
    tricky = torch.randn(7, 3, generator=generator)
    tricky[0, 0], tricky[1, 1], tricky[2, 2] = float("nan"), float("inf"), -0.0
    return {
        "a": tricky,
        "half": torch.randn(5, generator=generator).to(torch.bfloat16),  # an odd number of bytes in words
        "small": torch.randn(3, generator=generator).to(torch.float16),
        "turned": torch.randn(4, 6, generator=generator).t(),
        "count": torch.tensor([1, 2, 2**40]),
        "flags": torch.tensor([True, False, True]),
        "none": torch.empty(0, 4),
        "one": torch.tensor(2.5),
    }


def empty_like(weights: Weights) -> Weights:
    return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in weights.items()}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def transfer(
    folder: Path, ours: Weights, theirs: Weights, *, timeout: float = 20.0
) -> tuple[WeightsSent | StartFailed, StartFailed | None]:
    """What came of it on the sender's side, and on the receiver's."""
    place = folder / "with spaces and %"
    place.touch()

    def attempt(side: Callable[..., object], weights: Weights) -> object:
        try:
            return side(weights, place.as_uri(), 3, timeout)
        except StartFailed as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(attempt, peer.send, ours)
        received = pool.submit(attempt, peer.receive, theirs)
        return sent.result(60), received.result(60)  # type: ignore[return-value]  # of the sides above


def test_every_bit_arrives(tmp_path: Path) -> None:
    weights = some_weights()
    target = empty_like(weights)
    sent, received = transfer(tmp_path, weights, target)
    assert received is None
    assert isinstance(sent, WeightsSent)
    assert sent.num_bytes == sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    for name, tensor in weights.items():
        assert bits(target[name]) == bits(tensor), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": torch.zeros(7, 4)}, "a is torch.float32 [7, 3], and here a torch.float32 [7, 4]"),
        ({"half": torch.zeros(5)}, "half is torch.bfloat16 [5], and here half torch.float32 [5]"),
        ({"more": torch.zeros(1)}, "8 tensors, and here 9"),
    ],
)
def test_other_weights_are_told_to_both(tmp_path: Path, change: Weights, said: str) -> None:
    weights = some_weights()
    sent, received = transfer(tmp_path, weights, empty_like(weights) | change)
    assert str(received) == f"the peer has other weights: {said}"
    assert str(sent) == f"the peer wants other weights: {said}"


def test_a_wrong_bit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, original = some_weights(), peer._summed
    sums = iter(range(1000))
    monkeypatch.setattr(peer, "_summed", lambda total, flat: original(total, flat) + next(sums))
    _, received = transfer(tmp_path, weights, empty_like(weights))
    assert str(received).startswith("the weights that came from the peer have the checksum ")


@given(st.binary(max_size=64), st.integers(0, 63), st.integers(1, 255))
def test_the_sum_sees_a_changed_byte_and_the_order(data: bytes, place: int, change: int) -> None:
    def of(content: bytes) -> int:
        return peer._summed(1, torch.frombuffer(bytearray(content or b"x"), dtype=torch.uint8))

    data = data or b"x"
    place %= len(data)
    changed = bytearray(data)
    changed[place] = (changed[place] + change) % 256
    assert of(bytes(changed)) != of(data)
    if len(data) >= 8 and data[:4] != data[4:8]:
        assert of(data[4:8] + data[:4] + data[8:]) != of(data)


@settings(max_examples=20)
@given(st.integers(1, 5_000_000), st.integers(0, 3))
def test_the_sum_is_of_all_of_it(size: int, tail: int) -> None:
    flat = torch.zeros(4 * (size // 64) + tail + 1, dtype=torch.uint8)
    before = peer._summed(0, flat)
    flat[-1] = 1
    assert peer._summed(0, flat) != before


def test_who_is_given_up_does_not_wait(tmp_path: Path) -> None:
    place = tmp_path / "peer"
    place.touch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(peer.receive, some_weights(), place.as_uri(), 0, 300.0)
        until = time.monotonic() + 20
        while not Path(f"{place}.0").exists():
            assert time.monotonic() < until
            time.sleep(0.002)
        place.unlink()
        with pytest.raises(StartFailed, match=r"^the transfer of weights was given up by whoever had asked for it$"):
            waiting.result(60)


def test_a_peer_that_does_not_come(tmp_path: Path) -> None:
    place = tmp_path / "peer"
    place.touch()
    with pytest.raises(StartFailed, match=r"^the peer said nothing for 0\.05 s in the transfer of weights$"):
        peer.send(some_weights(), place.as_uri(), 0, 0.05)


@pytest.mark.parametrize("rendezvous", ["", "tcp://127.0.0.1:1/x", "env", "file://"])
def test_what_is_no_meeting_place(rendezvous: str) -> None:
    with pytest.raises(StartFailed, match="is no rendezvous of peers: it is file:///folder/name"):
        peer.send({}, rendezvous, 0, 1.0)
