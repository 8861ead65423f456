"""A small Llama in PyTorch whose weights map one to one onto llama.cpp's ``llama`` architecture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

ROPE_BASE = 10_000.0
RMS_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """Geometry of one model; all heads are full multi-head attention and the output head is the embedding."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocab: int = 2048
    context: int = 2048

    @property
    def parameters(self) -> int:
        """Number of weights."""
        layer = 4 * self.width**2 + 3 * self.width * self.ffn + 2 * self.width
        return self.vocab * self.width + self.layers * layer + self.width


class Block(nn.Module):
    """Pre-norm attention and SwiGLU feed-forward, both residual."""

    def __init__(self, shape: Shape) -> None:
        """Allocates the weights of one layer."""
        super().__init__()
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(shape.width, eps=RMS_EPSILON)
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=RMS_EPSILON)
        self.ffn_gate_up = nn.Linear(shape.width, 2 * shape.ffn, bias=False)
        self.ffn_down = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Maps activations [batch, time, width] to the same shape; `rotation` is [time, head_width/2] complex."""
        batch, time, width = x.shape
        qkv = self.attn_qkv(self.attn_norm(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        mixed = F.scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v, is_causal=True)
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(batch, time, width))
        gate, up = self.ffn_gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn_down(F.silu(gate) * up)


class Llama(nn.Module):
    """Token ids [batch, time] to logits [batch, time, vocab]."""

    def __init__(self, shape: Shape) -> None:
        """Allocates and initialises all weights (normal, 0.02; residual outputs scaled down by depth)."""
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=RMS_EPSILON)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns next-token logits for every position."""
        rotation = rotations(tokens.shape[1], self.shape.width // self.shape.heads)
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, rotation)
        return F.linear(self.output_norm(x), self.token_embd.weight)


def rotations(time: int, head_width: int) -> torch.Tensor:
    """Returns the rotary angles as unit complex numbers, [time, head_width / 2] (RoFormer, arXiv:2104.09864)."""
    frequency = ROPE_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angle = torch.outer(torch.arange(time, dtype=torch.float32), frequency)
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotates adjacent pairs of [..., time, head_width], the layout that llama.cpp's ``llama`` graph expects."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)
