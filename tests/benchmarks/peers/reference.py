"""What transformers answers in float32: the first greedy ids of the first prompt of each set. One JSON line.

Answers of other engines are compared with these: a mode that gives other ones is not a faster way to the same.
"""

from __future__ import annotations

import argparse
import json

from common import HEAD, HOME, THREADS

ap = argparse.ArgumentParser(description=__doc__)
ap.add_argument("--workloads", default="W1,W2,W3,W4,W5", help="names, with commas between")
ap.add_argument("--model", default="smollm2-135m", help="name under PEERS_HOME/models")
args = ap.parse_args()


def main() -> None:
    """Answer each prompt alone."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    folder = HOME / "models" / f"{args.model}-fp32"
    if not folder.exists():  # a home without peers: the rounded weights, in float32
        folder = HOME / "models" / f"{args.model}-bf16"
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    work = json.loads((HOME / "workloads.json").read_text())

    def answer(prompt: list[int], n: int) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=n,
                max_new_tokens=n,
                eos_token_id=None,
                pad_token_id=2,
            )
        return [int(one) for one in out[0, len(prompt) :]]

    heads = {
        name: [answer(prompts[0], min(HEAD, work[name]["max_tokens"])) for prompts in work[name]["sets"]]
        for name in args.workloads.split(",")
    }
    print(json.dumps({"reference": folder.name, "heads": heads}))


if __name__ == "__main__":
    main()
