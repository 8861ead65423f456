"""Trains the target on next tokens, or the draft on the target's own distributions (full KL).

Optimiser: Muon (Jordan 2024, "Muon: an optimizer for hidden layers") for matrices, AdamW for embeddings and norms,
cosine schedules. Every random draw comes from `--seed`; steps, not minutes, end a run, so a run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from tools.train_pair.model import Llama, Shape

DOMAINS = ("prose", "code")


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Returns the nearest semi-orthogonal matrix, approximately, by five quintic Newton-Schulz steps."""
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, then orthogonalised updates, scaled so that learning rates carry over between matrix shapes."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        """Keeps one momentum buffer a matrix."""
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Applies one update."""
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalise(weight.grad.lerp(momentum, group["momentum"]))
                weight.mul_(1 - group["lr"] * 0.05)
                weight.add_(update, alpha=-group["lr"] * max(1, weight.shape[0] / weight.shape[1]) ** 0.5)


def batches(work: Path, kind: str, rows: int, time_steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Yields [rows, time_steps + 1] windows, half of them from each domain, at random offsets."""
    rng = np.random.default_rng(seed)
    streams = [np.load(work / f"{domain}.{kind}.npy") for domain in DOMAINS]
    while True:
        windows = []
        for row in range(rows):
            stream = streams[row % len(streams)]
            start = int(rng.integers(0, len(stream) - time_steps - 1))
            windows.append(stream[start : start + time_steps + 1].astype(np.int64))
        yield torch.from_numpy(np.stack(windows))


@torch.no_grad()
def held_out_losses(model: Llama, work: Path, teacher: Llama | None) -> dict[str, float]:
    """Returns, per domain, next-token loss in nats and, with a teacher, KL(teacher || model) and mean sum min(p, q)."""
    figures = {}
    for domain in DOMAINS:
        stream = torch.from_numpy(np.load(work / f"{domain}.held.npy").astype(np.int64))
        windows = stream[: 32 * 513].view(32, 513)
        log_q = torch.cat([F.log_softmax(model(part[:, :-1]), -1) for part in windows.split(8)])
        figures[f"{domain}_loss"] = F.nll_loss(log_q.flatten(0, 1), windows[:, 1:].flatten()).item()
        if teacher is not None:
            log_p = torch.cat([F.log_softmax(teacher(part[:, :-1]), -1) for part in windows.split(8)])
            figures[f"{domain}_kl"] = (
                F.kl_div(log_q, log_p, log_target=True, reduction="sum").item() / log_q[..., 0].numel()
            )
            figures[f"{domain}_alpha"] = torch.minimum(log_q.exp(), log_p.exp()).sum(-1).mean().item()
            figures[f"{domain}_greedy_agreement"] = (
                (log_q.argmax(-1) == log_p.argmax(-1)).float().mean().item()
            )
    return figures


def train(
    shape: Shape,
    work: Path,
    *,
    name: str,
    steps: int,
    rows: int,
    time_steps: int,
    seed: int,
    matrix_rate: float = 0.02,
    embedding_rate: float = 0.003,
    teacher: Llama | None = None,
    start: Path | None = None,
    stream: str = "train",
) -> Llama:
    """Trains and saves `name`.pt (weights) and `name`.json (shape, arguments, losses) in `work`; returns the model."""
    torch.manual_seed(seed)
    model = Llama(shape)
    stages: list[dict[str, int]] = []
    if start is not None:
        saved = torch.load(start, weights_only=True)
        model.load_state_dict(saved["weights"])
        stages = saved.get("stages", [])
    matrices = [w for n, w in model.named_parameters() if w.dim() == 2 and n.startswith("blk")]
    others = [w for n, w in model.named_parameters() if not (w.dim() == 2 and n.startswith("blk"))]
    optimisers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=matrix_rate),
        torch.optim.AdamW(others, lr=embedding_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    schedule = [
        torch.optim.lr_scheduler.LambdaLR(
            o, lambda s: min((s + 1) / 30, 0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * min(1.0, s / steps))))
        )
        for o in optimisers
    ]
    source = batches(work, stream, rows, time_steps, seed)
    began, seen = time.monotonic(), 0.0
    for step in range(steps):
        window = next(source)
        inputs, nexts = window[:, :-1], window[:, 1:]
        logits = model(inputs)
        if teacher is None:
            loss = F.cross_entropy(logits.flatten(0, 1), nexts.flatten())
        else:
            with torch.no_grad():
                log_p = F.log_softmax(teacher(inputs), -1)
            log_q = F.log_softmax(logits, -1)
            loss = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimiser, rates in zip(optimisers, schedule, strict=True):
            optimiser.step()
            rates.step()
            optimiser.zero_grad()
        seen = loss.item() if step == 0 else 0.95 * seen + 0.05 * loss.item()
        if step % 25 == 24 or step == steps - 1:
            speed = rows * time_steps * (step + 1) / (time.monotonic() - began)
            print(f"{name} step {step + 1}/{steps} loss {seen:.4f} {speed:.0f} tokens/s", flush=True)
        if step % 50 == 49 or step == steps - 1:
            stage = {"steps": step + 1, "of": steps, "rows": rows, "time_steps": time_steps, "seed": seed}
            saving = {"weights": model.state_dict(), "shape": vars(shape), "stages": [*stages, stage]}
            torch.save(saving, work / f"{name}.pt")
    figures = held_out_losses(model, work, teacher)
    print(name, {key: round(value, 4) for key, value in figures.items()}, flush=True)
    record = {
        "shape": vars(shape),
        "parameters": shape.parameters,
        "stages": [*stages, stage],
        "final_training_loss": seen,
        "held_out": figures,
        "seconds": round(time.monotonic() - began),
    }
    (work / f"{name}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    return model


def load(path: Path) -> Llama:
    """Loads a model saved by `train`, frozen."""
    saved = torch.load(path, weights_only=True)
    model = Llama(Shape(**saved["shape"]))
    model.load_state_dict(saved["weights"])
    return model.requires_grad_(False)


def main() -> None:
    """Command line: one stage of training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("name")
    parser.add_argument("--shape", required=True, help="layers,width,heads,ffn")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--time-steps", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1611)
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--embedding-rate", type=float, default=0.003)
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--stream", default="train")
    options = vars(parser.parse_args())
    layers, width, heads, ffn = (int(part) for part in options.pop("shape").split(","))
    teacher = options.pop("teacher")
    train(Shape(layers, width, heads, ffn), teacher=load(teacher) if teacher else None, **options)


if __name__ == "__main__":
    main()
