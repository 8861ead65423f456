"""Trains the embedded pair: corpus, tokenizer, target, distilled draft, GGUF export (README.md beside this file)."""
