"""The sampler as it reads most plainly: one row after the other, the whole vocabulary of each, in torch and float64.

What the sampler does for all rows at once must draw the same tokens. Only what single steps do in place (penalties,
bias, bans) is shared with it; those have definitions of their own in ``numpy_sampling``.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from enginebay.messages import TokenLogprob
from enginebay.worker.masks import Mask, add_bias, apply_masks, ban, banned_tokens
from enginebay.worker.noise import draw_key, gumbel_noise
from enginebay.worker.penalties import penalize
from enginebay.worker.sampling import Draw


def draw_row(logits: torch.Tensor, draw: Draw, mask: Mask | None = None) -> int | None:
    """The token of one row ``[vocab_size]``; None if it has none."""
    scores = logits.to(torch.float64, copy=True)
    if not bool(scores.max().isfinite()):
        return None
    _shape(scores.numpy(), draw, mask)
    highest, params = scores.max(), draw.params
    if not bool(highest.isfinite()):
        return None
    if params.temperature == 0:
        return int(scores.numpy().argmax())
    scores = (scores - highest) / params.temperature
    kept = kept_tokens(scores, params.top_k, params.min_p, params.top_p).sort().values
    noise = gumbel_noise(draw_key(draw.seed, draw.choice, draw.position), kept.numpy().astype(np.uint64))
    return int(kept[int((scores[kept].numpy() + noise).argmax())])


def _shape(scores: np.ndarray[tuple[int], np.dtype[np.float64]], draw: Draw, mask: Mask | None) -> None:
    params, known, prompt = draw.params, draw.token_ids, draw.num_prompt_tokens
    penalize(scores, params, known, prompt)
    add_bias(scores, params.logit_bias)
    if mask is not None:
        apply_masks(scores[None], [mask])
        others = scores.copy()
        ban(others, [*draw.eos_token_ids, *params.stop_token_ids])
        if not others.max() > -np.inf:
            params = msgspec.structs.replace(params, min_tokens=0)
    ban(scores, banned_tokens(params, known, prompt, draw.eos_token_ids))


def kept_tokens(scores: torch.Tensor, top_k: int = 0, min_p: float = 0.0, top_p: float = 1.0) -> torch.Tensor:
    """The ids that the filters leave, best first; the largest of the ``[vocab_size]`` scores is 0."""
    ids = torch.sort(scores, descending=True, stable=True).indices
    if top_k > 0:
        ids = ids[:top_k]
    if min_p > 0:
        ids = ids[scores[ids].exp() >= min_p]
    if top_p < 1:
        shares = scores[ids].exp() / scores[ids].exp().sum()
        ids = ids[: max(1, int((shares.cumsum(0) - shares < top_p).sum()))]
    return ids


def token_logprob(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprob:
    """One token's entry of one row of raw logits."""
    exact = logits.double()
    total = exact.logsumexp(0)
    order = torch.sort(exact, descending=True, stable=True).indices
    best = order[:top]
    return TokenLogprob(
        token_id=token_id,
        logprob=float(exact[token_id] - total),
        rank=int((order == token_id).nonzero()) + 1,
        top=tuple(zip(best.tolist(), (exact[best] - total).tolist(), strict=True)),
    )
