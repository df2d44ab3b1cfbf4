"""What programs hold in their hands: ``LLM``, ``AsyncLLM``, and the answers that come out."""
