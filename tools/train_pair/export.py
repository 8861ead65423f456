"""Writes a trained model and its tokenizer as one GGUF file for llama.cpp's ``llama`` architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tools.train_pair.model import RMS_EPSILON, ROPE_BASE, Llama, Shape

END_OF_TEXT = "<|endoftext|>"


def weights(model: Llama) -> dict[str, np.ndarray[Any, Any]]:
    """Returns GGUF tensor names and float32 arrays; fused projections are split as llama.cpp names them."""
    shape, named = model.shape, {}
    for name, tensor in model.state_dict().items():
        array = tensor.detach().to(torch.float32).numpy()
        if name.endswith("attn_qkv.weight"):
            for part, piece in zip("qkv", np.split(array, 3), strict=True):
                named[name.replace("attn_qkv", f"attn_{part}")] = piece
        elif name.endswith("ffn_gate_up.weight"):
            for part, piece in zip(("gate", "up"), np.split(array, [shape.ffn]), strict=True):
                named[name.replace("ffn_gate_up", f"ffn_{part}")] = piece
        else:
            named[name] = array
    return named


def write_gguf(
    path: Path,
    name: str,
    shape: Shape,
    tensors: dict[str, np.ndarray[Any, Any]],
    tokenizer: Path,
    number_format: str,
) -> None:
    """Writes `tensors` with `tokenizer` (a Hugging Face tokenizer.json) to `path`.

    Matrices are stored in `number_format` ("f32" or "f16"); norm vectors always stay float32.
    """
    described = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license("Apache-2.0")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_vocab_size(shape.vocab)
    half = number_format == "f16"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in described["merges"]])
    end = tokens.index(END_OF_TEXT)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    for tensor_name, array in tensors.items():
        writer.add_tensor(tensor_name, array.astype(np.float16) if half and array.ndim == 2 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
