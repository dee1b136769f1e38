"""What must come out bit for bit: one small scenario for each thing that people do in a training loop.

Each is used twice, by the oracle and by a relume loop. They are kept so small that a step takes about a millisecond,
and uneven on purpose: 11 samples over 4 shards give weights of 3 and 2, and neither 3 nor 11 divides without rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, default_collate

from tests.oracle import Objects, Scenario, Tape

FEATURES = 8
CLASSES = 5


class Points(Dataset):
    """Random points with a class each; the same in every process."""

    def __init__(self, length: int = 30, shape: tuple[int, ...] = (FEATURES,), dtype: torch.dtype = torch.float32):
        generator = torch.Generator().manual_seed(17)
        self.x = torch.randn(length, *shape, generator=generator, dtype=torch.float64).to(dtype)
        self.y = torch.randint(CLASSES, (length,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


class Augmented(Points):
    """Every sample is changed by draws from all three generators."""

    def __getitem__(self, index):
        noise = np.random.normal(size=FEATURES).astype(np.float32)  # noqa: NPY002 - as augmentation libraries do
        x = self.x[index] * random.uniform(0.5, 1.5) + torch.rand(FEATURES) + torch.from_numpy(noise)
        return {"x": x, "y": self.y[index]}


class Sentences(Dataset):
    """Token ids of uneven length, padded with 0."""

    def __init__(self, length: int = 30, words: int = 12):
        generator = torch.Generator().manual_seed(18)
        self.tokens = torch.randint(1, words, (length, 6), generator=generator)
        for row, size in enumerate(torch.randint(2, 7, (length,), generator=generator).tolist()):
            self.tokens[row, size:] = 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


def mlp(dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The model where the model is not the point."""
    layers = [nn.Linear(FEATURES, 16, dtype=dtype), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, CLASSES, dtype=dtype)]
    return nn.Sequential(*layers)


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02, **options)


def with_adamw(make: Callable[[], nn.Module], **options: Any) -> Callable[[], Objects]:
    """Build a model and its AdamW."""

    def build() -> Objects:
        model = make()
        return {"model": model, "optimizer": adamw(model, **options)}

    return build


def classify(objects: Objects, batch: Any, tape: Tape) -> None:
    """Forward and backward of an ordinary classifier."""
    loss = F.cross_entropy(objects["model"](batch["x"]), batch["y"])
    tape.plain(loss)
    tape.log(loss=loss)


def update(objects: Objects, step: int) -> None:
    """Step whatever steps."""
    for name in ("optimizer", "second_optimizer", "scheduler"):
        if name in objects:
            objects[name].step()


def simple(name: str, build: Callable[[], Objects], **more: Any) -> Scenario:
    """Make a scenario that classifies points, where nothing else is said."""
    settings = {"shard": classify, "update": update, "source": Points(), **more}
    return Scenario(name, build, **settings)


# --- randomness -------------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Two checkpointed blocks with dropout and one weight in both.

    With `use_reentrant` each block has a backward of its own, so that the weight gets its gradient in two pieces.
    """

    def __init__(self, *, reentrant: bool):
        super().__init__()
        self.reentrant = reentrant
        self.first, self.shared, self.last = nn.Linear(FEATURES, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def block(self, x):
        return F.dropout(torch.tanh(self.shared(x)), 0.3, self.training)

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.last(x)


def noisy_update(objects: Objects, step: int) -> None:
    """Draw from all generators after the inner loop too."""
    for parameter in objects["model"].parameters():
        draw = float(np.random.rand()) * random.random()  # noqa: NPY002 - the global generator is what is tested
        parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.01 * draw)
    objects["optimizer"].step()


def transformer() -> nn.Module:
    """Attention with dropout inside; the features are a sequence of two."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 4)), layer, nn.Flatten(), nn.Linear(FEATURES, CLASSES))


RANDOMNESS = [
    simple("dropout", with_adamw(lambda: mlp(dropout=0.4))),
    simple("transformer", with_adamw(transformer)),
    simple("checkpointing", with_adamw(lambda: Checkpointed(reentrant=False))),
    simple("checkpointing-reentrant", with_adamw(lambda: Checkpointed(reentrant=True))),
    simple("augmentation", with_adamw(mlp), source=Augmented()),
    simple("augmentation-in-loaders", with_adamw(mlp), source=Augmented(), options={"num_workers": 2}),
    simple("noise-in-the-update", with_adamw(mlp), update=noisy_update),
]

# --- buffers ----------------------------------------------------------------------------------------------------------


def convolution() -> nn.Module:
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, CLASSES)]
    return nn.Sequential(*layers)


class Replaced(nn.Module):
    """Puts a new tensor in a buffer's place at each forward, and has a buffer that is not in the state dict."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.seen += len(x)
        return self.inner(x - self.mean) * (1 + 0.01 * self.seen)


def spectral() -> nn.Module:
    """Spectral normalisation iterates on buffers of its own at each forward; the batch norm in eval mode does not."""
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 16))
    return nn.Sequential(first, nn.BatchNorm1d(16).eval(), nn.Tanh(), nn.Linear(16, CLASSES))


def look(objects: Objects) -> None:
    """Evaluate, draw, train a bit: all that must leave no trace when it is done aside."""
    model = objects["model"]
    x = torch.randn(4, 3, 4, 4) * random.random() + np.random.rand()  # noqa: NPY002 - the global generator
    model(x).sum().backward()
    model.eval()
    model(x)


def averaged() -> Objects:
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    return {"model": model, "optimizer": adamw(model), "average": average}


def update_averaged(objects: Objects, step: int) -> None:
    objects["optimizer"].step()
    objects["average"].update_parameters(objects["model"])


BUFFERS = [
    simple("batchnorm", with_adamw(convolution), source=Points(shape=(3, 4, 4))),
    simple(
        "channels-last-fused",
        with_adamw(lambda: convolution().to(memory_format=torch.channels_last), fused=True),
        source=Points(shape=(3, 4, 4)),
    ),
    simple("replaced-buffers", with_adamw(Replaced)),
    simple("spectral-norm", with_adamw(spectral)),
    simple(
        "evaluation-aside",
        with_adamw(convolution),
        source=Points(shape=(3, 4, 4)),
        aside=look,
        update=noisy_update,
    ),
    simple("ema", averaged, update=update_averaged, source=Points(24), batch=12),
]

# --- precision --------------------------------------------------------------------------------------------------------


def classify_bf16(objects: Objects, batch: Any, tape: Tape) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(objects["model"](batch["x"]), batch["y"])
    tape.plain(loss)
    tape.log(loss=loss)


def scaled() -> Objects:
    """The first scale is too large on purpose: some steps overflow and are left out by the scaler."""
    model = mlp(dropout=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    return {"model": model, "optimizer": adamw(model), "scaler": scaler}


def classify_fp16(objects: Objects, batch: Any, tape: Tape) -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(objects["model"](batch["x"]), batch["y"])
    tape.plain(objects["scaler"].scale(loss))
    tape.log(loss=loss)


def update_scaled(objects: Objects, step: int) -> None:
    scaler = objects["scaler"]
    scaler.unscale_(objects["optimizer"])
    nn.utils.clip_grad_norm_(objects["model"].parameters(), 1.0)
    scaler.step(objects["optimizer"])
    scaler.update()


class Mixed(nn.Module):
    """Parameters of three dtypes, with shapes and strides that are rare: scalar, empty, transposed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 7), nn.Linear(7, 9, dtype=torch.float64)
        self.third = nn.Linear(9, CLASSES, dtype=torch.bfloat16)
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.randn(CLASSES, 9).t())

    def forward(self, x):
        x = torch.tanh(self.second(self.first(x).double()))
        both = self.third(x.bfloat16()).float() + x.float() @ self.turned
        return both * self.scale + self.nothing.sum()


PRECISION = [
    simple("bf16-autocast", with_adamw(mlp), shard=classify_bf16),
    simple("fp16-grad-scaler", scaled, shard=classify_fp16, update=update_scaled, steps=8),
    simple("float64", with_adamw(lambda: mlp(dtype=torch.float64)), source=Points(dtype=torch.float64)),
    simple("mixed-dtypes", with_adamw(Mixed)),
]

# --- optimizers -------------------------------------------------------------------------------------------------------


def clipped(objects: Objects, step: int) -> None:
    nn.utils.clip_grad_norm_(objects["model"].parameters(), 0.3)
    nn.utils.clip_grad_value_(objects["model"].parameters(), 0.05)
    objects["optimizer"].step()


def momentum() -> Objects:
    model = mlp()
    settings = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), **settings)}


def two_models() -> Objects:
    encoder, decoder = nn.Linear(FEATURES, 12), nn.Sequential(nn.ReLU(), nn.Linear(12, CLASSES))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
    return {"encoder": encoder, "decoder": decoder, "optimizer": optimizer, "second_optimizer": adamw(decoder)}


def classify_two_models(objects: Objects, batch: Any, tape: Tape) -> None:
    loss = F.cross_entropy(objects["decoder"](objects["encoder"](batch["x"])), batch["y"])
    tape.plain(loss)
    tape.log(loss=loss)


def scheduled() -> Objects:
    model = mlp()
    optimizer = adamw(model)
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler.SequentialLR(optimizer, parts, [3])}


def cycled() -> Objects:
    """OneCycleLR moves the betas too."""
    model = mlp()
    optimizer = adamw(model)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10),
    }


def zoo() -> Objects:
    """One optimizer of each kind, each with a layer."""
    model = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(8))
    parts = [list(layer.parameters()) for layer in model]
    optimizers = [
        torch.optim.Adam(parts[0], lr=torch.tensor(0.01), amsgrad=True),
        torch.optim.Adagrad(parts[1]),
        torch.optim.RMSprop(parts[2], momentum=0.5, centered=True),
        torch.optim.NAdam(parts[3]),
        torch.optim.RAdam(parts[4]),
        torch.optim.Adafactor(parts[5]),
        torch.optim.ASGD(parts[6]),
        torch.optim.Rprop(parts[7]),
    ]
    return {"model": model, **{type(optimizer).__name__: optimizer for optimizer in optimizers}}


def classify_zoo(objects: Objects, batch: Any, tape: Tape) -> None:
    loss = F.cross_entropy(torch.stack([layer(batch["x"]) for layer in objects["model"]]).mean(0), batch["y"])
    tape.plain(loss)
    tape.log(loss=loss)


def update_zoo(objects: Objects, step: int) -> None:
    for value in objects.values():
        if isinstance(value, torch.optim.Optimizer):
            value.step()


def classify_after_zeroing(objects: Objects, batch: Any, tape: Tape) -> None:
    """People leave `zero_grad` where they had it."""
    objects["optimizer"].zero_grad()
    classify(objects, batch, tape)


def update_and_zero(objects: Objects, step: int) -> None:
    """Leaves zeros behind, into which the next backward must not be added."""
    objects["optimizer"].step()
    objects["optimizer"].zero_grad(set_to_none=False)


def wide() -> nn.Module:
    """Large enough for several blocks of the sum, at odd boundaries."""
    return nn.Sequential(nn.Linear(FEATURES, 301), nn.ReLU(), nn.Linear(301, 403), nn.Linear(403, CLASSES))


OPTIMIZERS = [
    simple("clipping", with_adamw(mlp), update=clipped),
    simple("sgd-momentum", momentum),
    simple("adamw-fused", with_adamw(mlp, fused=True)),
    simple("adamw-foreach", with_adamw(mlp, foreach=True)),
    simple("two-optimizers", two_models, shard=classify_two_models),
    simple("lr-schedulers", scheduled),
    simple("one-cycle", cycled),
    simple("every-optimizer", zoo, shard=classify_zoo, update=update_zoo),
    simple("zero-grad-left-in", with_adamw(mlp), shard=classify_after_zeroing, update=update_and_zero),
    simple("several-blocks", with_adamw(wide)),
]

# --- parameters -------------------------------------------------------------------------------------------------------


def frozen() -> Objects:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return {"model": model, "optimizer": adamw(model)}


def update_and_freeze(objects: Objects, step: int) -> None:
    """In steps 2 and 3 one more layer stands still."""
    objects["optimizer"].step()
    objects["model"][0].bias.requires_grad_(step not in {1, 2})


class Tied(nn.Module):
    """A language model whose embedding is its last layer too."""

    def __init__(self, words: int = 12, width: int = 10):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def predict_tokens(objects: Objects, tokens: Any, tape: Tape) -> None:
    """Language modelling with the plain mean over a shard."""
    loss = F.cross_entropy(objects["model"](tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    tape.plain(loss)
    tape.log(loss=loss)


class Routed(nn.Module):
    """Experts by the sign of a batch: some parameters get gradients in some shards, in one, in none."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)
        self.rare, self.unused = nn.Parameter(torch.randn(CLASSES)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        mean = float(x.mean())
        out = self.left(hidden) if mean > 0 else self.right(hidden)
        return out + self.rare if mean > 0.2 else out


PARAMETERS = [
    simple("frozen", frozen, update=update_and_freeze),
    simple("tied-weights", with_adamw(Tied), shard=predict_tokens, source=Sentences()),
    simple("no-gradient-in-some-shards", with_adamw(Routed)),
]

# --- weights and batches ----------------------------------------------------------------------------------------------


def by_tokens(objects: Objects, tokens: Any, tape: Tape) -> None:
    """The mean over a shard's real tokens, weighted by how many they are."""
    logits, targets = objects["model"](tokens[:, :-1]), tokens[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
    tape.weighted(loss, (targets != 0).sum().item())
    tape.log(loss=loss, tokens=(targets != 0).sum())


def by_tokens_in_parts(objects: Objects, tokens: Any, tape: Tape) -> None:
    """Several weighted backwards per shard."""
    for part in tokens.split(2):
        by_tokens(objects, part, tape)


def in_micro_batches(objects: Objects, batch: Any, tape: Tape) -> None:
    """Several backwards per shard, each logging, of parts of unequal size."""
    for x, y in zip(batch["x"].split(1), batch["y"].split(1), strict=True):
        loss = F.cross_entropy(objects["model"](x), y)
        tape.plain(loss / len(batch["x"]))
        tape.log(loss=loss)


def routed_micro_batches(objects: Objects, batch: Any, tape: Tape) -> None:
    """Some parameters get a gradient in one backward of a shard and not in the other."""
    for x, y in zip(batch["x"].split(1), batch["y"].split(1), strict=True):
        loss = F.cross_entropy(objects["model"](x), y)
        tape.plain(loss)
        tape.log(loss=loss)


def two_losses(objects: Objects, batch: Any, tape: Tape) -> None:
    """Two backwards through one graph, and a penalty on a gradient."""
    x = batch["x"].requires_grad_()
    logits = objects["model"](x)
    loss = F.cross_entropy(logits, batch["y"])
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    tape.plain(loss + slope.square().sum(), retain_graph=True)
    tape.plain(0.1 * logits.square().mean())
    tape.log(loss=loss)


def by_a_fraction(objects: Objects, batch: Any, tape: Tape) -> None:
    loss = F.cross_entropy(objects["model"](batch["x"]), batch["y"])
    tape.weighted(loss, float(batch["x"].abs().sum()) / 3)
    tape.log(loss=loss)


def skip_some(objects: Objects, batch: Any, tape: Tape) -> None:
    """Skip shards by what is in them; in step 2, all."""
    if tape.number == 2 or float(batch["x"].mean()) > 0.1:
        tape.skip()
    else:
        classify(objects, batch, tape)


def stack_pairs(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collate function of one's own, which draws."""
    batch = default_collate(items)
    batch["x"] = batch["x"][:, torch.randperm(FEATURES)]
    return batch


def stream(step: int, shard: int) -> dict[str, torch.Tensor] | None:
    """A source without length: 1 to 3 samples per shard, and none in shard 1 of every third step."""
    if shard == 1 and step % 3 == 2:
        return None
    size = 1 + (step + shard) % 3
    return {"x": torch.randn(size, FEATURES), "y": torch.randint(CLASSES, (size,))}


BATCHES = [
    simple("weighted-by-tokens", with_adamw(Tied), shard=by_tokens, source=Sentences()),
    simple("weighted-in-parts", with_adamw(Tied), shard=by_tokens_in_parts, source=Sentences()),
    simple("micro-batches", with_adamw(lambda: mlp(dropout=0.2)), shard=in_micro_batches),
    simple("routed-micro-batches", with_adamw(Routed), shard=routed_micro_batches),
    simple("two-losses-and-a-penalty", with_adamw(mlp), shard=two_losses),
    simple("weighted-by-a-fraction", with_adamw(mlp), shard=by_a_fraction),
    simple("early-end", with_adamw(mlp), steps=30, until=lambda means: float.fromhex(means["loss"]) < 1.5),
    simple("skipped-shards", with_adamw(mlp), shard=skip_some),
    simple("unequal-last-batch", with_adamw(mlp), source=Points(25)),
    simple("batch-smaller-than-shards", with_adamw(mlp), batch=3),
    simple("data-smaller-than-batch", with_adamw(mlp), source=Points(7)),
    simple("in-order-without-the-rest", with_adamw(mlp), options={"shuffle": False, "drop_last": True}),
    simple("own-collate-and-seed", with_adamw(mlp), options={"collate_fn": stack_pairs, "seed": 99}),
    simple("stream", with_adamw(mlp), source=stream, stream=True),
]

# --- special values ---------------------------------------------------------------------------------------------------

PAYLOAD = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32).item()  # a quiet NaN with bits of its own
TINY, HUGE = 1e-42, 3e38

# Column by column: what the four shards of a step contribute to one element. None of it may come out as something else.
SPECIAL = [
    [-0.0, -0.0, -0.0, -0.0],
    [-0.0, 0.0, -0.0, -0.0],
    [1.0, -1.0, -0.0, -0.0],
    [math.inf, 1.0, 2.0, 3.0],
    [math.inf, 1.0, -math.inf, 3.0],
    [1.0, math.nan, 2.0, 3.0],
    [1.0, 2.0, PAYLOAD, 3.0],
    [-PAYLOAD, math.inf, 1.0, 1.0],
    [HUGE, HUGE, -HUGE, -HUGE],
    [HUGE, -HUGE, 1.0, 1.0],
    [TINY, TINY, -TINY, TINY],
    [-TINY, TINY, -0.0, -0.0],
]


class SpecialValues(Dataset):
    """Sample i is row i modulo 4 of the table, as the bits stand."""

    def __init__(self):
        bits = torch.tensor(SPECIAL, dtype=torch.float32).t().contiguous()
        bits[2, 6] = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32)[0]
        self.rows = bits

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.rows[index]


class Weighing(nn.Module):
    """The gradient of its parameters is the batch itself; with `gaps`, one more has none in shard 1."""

    def __init__(self, *, gaps: bool = False):
        super().__init__()
        self.gap = nn.Parameter(torch.ones(3)) if gaps else None
        ones = (torch.ones(len(SPECIAL), dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16))
        self.weights = nn.ParameterList(nn.Parameter(each) for each in ones)

    def forward(self, row):
        sums = [(weight * row.to(weight.dtype)).sum() for weight in self.weights]
        return [*sums, self.gap.sum()] if self.gap is not None and float(row[4]) != 1.0 else sums


def weigh(objects: Objects, batch: Any, tape: Tape) -> None:
    tape.plain(sum(objects["model"](batch[0])))  # a sum passes 1 to each weight's product: its gradient is the row
    tape.log(loss=float(tape.number))


def weigh_each(objects: Objects, batch: Any, tape: Tape) -> None:
    """A backward for each sample: what cancels within a shard must not overflow by its weight first."""
    for row in batch:
        tape.plain(sum(objects["model"](row)))
    tape.log(loss=float(tape.number))


IN_ORDER: dict[str, Any] = {"shard": weigh, "source": SpecialValues(), "batch": 4, "options": {"shuffle": False}}

SPECIAL_VALUES = [
    simple("special-values", with_adamw(Weighing), **IN_ORDER),
    simple("special-values-and-gaps", with_adamw(lambda: Weighing(gaps=True)), **IN_ORDER),
    simple("special-values-in-micro-batches", with_adamw(Weighing), **IN_ORDER | {"shard": weigh_each, "shards": 2}),
]

ALL = [*RANDOMNESS, *BUFFERS, *PRECISION, *OPTIMIZERS, *PARAMETERS, *BATCHES, *SPECIAL_VALUES]
BY_NAME = {scenario.name: scenario for scenario in ALL}
