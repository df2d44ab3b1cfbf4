"""Text to token ids and back: tokenizer, incremental detokenizer, chat template. No torch, no transformers."""

from enginebay.text._chat import encode_chat
from enginebay.text._detokenizer import IncrementalDetokenizer
from enginebay.text._template import ChatTemplate
from enginebay.text._tokenizer import Tokenizer, encode_prompt

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "Tokenizer", "encode_chat", "encode_prompt"]
