"""A small GPT learns to write Python, from the sources of Python's own standard library.

    relume run --workers 4 examples/charlm.py      # kill any worker, at any instant: the weights come out the same
    python examples/charlm.py                      # the same training in one process, to the same bits

Nothing is downloaded: the text is on every machine that has Python. The training loop is at the bottom, in `main`.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import relume


def read_text(characters: int = 1_000_000) -> str:
    """The first so many characters of the standard library's top-level modules, in the order of their names."""
    parts, have = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes().decode("utf-8", errors="replace"))
        have += len(parts[-1])
        if have >= characters:
            break
    return "".join(parts)[:characters]


class Windows(Dataset[dict[str, torch.Tensor]]):
    """The text cut into windows of `context` characters; the target of each character is the one that follows it."""

    def __init__(self, text: str, context: int) -> None:
        self.vocabulary = sorted(set(text))
        number = {character: i for i, character in enumerate(self.vocabulary)}
        self.ids = torch.tensor([number[character] for character in text])
        self.context = context

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, end = index * self.context, (index + 1) * self.context
        return {"x": self.ids[start:end], "y": self.ids[start + 1 : end + 1]}


class Block(nn.Module):
    """Causal self-attention, then a perceptron, each beside a residual path; (batch, length, width) to the same."""

    def __init__(self, width: int, dropout: float, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let each character look at those before it, then think about what it saw."""
        batch, length, width = x.shape
        split = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x = x + self.dropout(self.mix(seen.transpose(1, 2).reshape(batch, length, width)))
        thought: torch.Tensor = self.dropout(self.perceptron(self.perceptron_norm(x)))
        return x + thought


class GPT(nn.Module):
    """Expects the next character, at every place of a text."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.context = context
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """From characters, (batch, length), to logits of the next ones, (batch, length, vocabulary)."""
        x = self.characters(ids) + self.positions(torch.arange(ids.shape[1]))
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    @torch.no_grad()
    def write(self, ids: list[int], length: int) -> list[int]:
        """Continue `ids` by `length` characters, each drawn from what the model expects."""
        self.eval()
        for _ in range(length):
            logits = self(torch.tensor([ids[-self.context :]]))[0, -1]
            ids = [*ids, int(torch.multinomial(logits.softmax(-1), 1))]
        self.train()
        return ids


def main() -> None:
    """Train. Below the parser stands the loop that one writes anyway, but for what says `run.` or `step.`."""
    parser = argparse.ArgumentParser(description="Train a small GPT on the sources of Python's standard library.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=48, help="windows in a global batch")
    parser.add_argument("--shards", type=int, help="fixed slices of the global batch (default: relume's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()

    run = relume.init(seed=args.seed)
    windows = Windows(read_text(), args.context)
    model = GPT(len(windows.vocabulary), args.context, args.width, args.layers, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps, eta_min=3e-4)
    run.protect(model=model, optimizer=optimizer, scheduler=scheduler)

    data = relume.Shards(windows, global_batch_size=args.batch, shards=args.shards)
    for step in run.steps(data, total=args.steps):
        for batch in step:
            logits = model(batch["x"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())
            loss.backward()
            step.log(loss=loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        run.vars.loss = step.mean("loss")
        if step.is_main and step.number % 20 == 0:
            print(f"step {step.number:4d}  loss {run.vars.loss:.4f}", flush=True)

    if run.is_main:
        with run.aside("sample"):
            ids = model.write([windows.vocabulary.index("\n")], 300)
            sample = "".join(windows.vocabulary[i] for i in ids)
        print(f"after {args.steps} steps  loss {run.vars.loss:.4f}  and this is how it writes:\n{sample}", flush=True)


if __name__ == "__main__":
    main()
