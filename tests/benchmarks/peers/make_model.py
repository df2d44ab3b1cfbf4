"""Turn a GGUF file into Hugging Face folders: OUT-bf16 and OUT-fp32.

The GGUF's weights are dequantised once; both folders hold the same values (bf16 after rounding), with the tokenizer and
the chat template.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = "What is the capital of France?"


def main() -> None:
    """Convert, and answer a question with what was written."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("gguf", type=Path)
    ap.add_argument("out", help="path prefix of the folders to write")
    ap.add_argument(
        "--no-digits", dest="digits", action="store_false", help="keep the converter's pre-tokenizer as it is"
    )
    args = ap.parse_args()

    source, name = str(args.gguf.parent), args.gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    # The GGUF says tokenizer.ggml.pre = "smollm": digits are split one by one. The
    # converter drops that step, so "2024" would become other ids than in llama.cpp.
    if args.digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    # transformers keeps a "quantization_config" of the GGUF; the saved weights are plain.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False

    for label, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        folder = Path(f"{args.out}-{label}")
        cast = model.to(dtype)
        cast.config.dtype = dtype
        cast.config._name_or_path = ""
        cast.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        assert "quantization_config" not in config, config
        print(folder, sorted(path.name for path in folder.iterdir()))
    answer(f"{args.out}-fp32")


def answer(folder: str) -> None:
    """Print what the model says to the question."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=32, do_sample=False)
    print(repr(tokenizer.decode(out[0][ids["input_ids"].shape[1] :])))


if __name__ == "__main__":
    main()
