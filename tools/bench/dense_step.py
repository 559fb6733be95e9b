"""What one training step of a model's dense part costs on this GPU: time, MFU on actual lengths, and peak memory.

    python -m faceter.tools.bench.dense_step                                # h200 at batch 1024
    python -m faceter.tools.bench.dense_step --model h200_small --batch-size 256 --compile

The plain model, as its author wrote it: no faceter pass and no kernel. Embeddings are random inputs with a gradient (in
place of lookups), history lengths are uniform in [0, max_length], precision is bf16 autocast, optimizer fused AdamW.
The memory that the tables and their rowwise AdaGrad state would take is allocated as well (`--no-tables`: is not), so
that the peak is that of real training. Columns: median milliseconds of a step (forward, backward, optimizer), examples
per second, model TFLOP/s (forward and backward on actual lengths), share of the data sheet's peak, and GiB.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch

from faceter.model.config import ConfigError, GemConfig
from faceter.model.flops import FlopCount
from faceter.model.gem import GemCore
from faceter.model.random_batch import random_embedded, random_lengths
from faceter.tools.train.mfu import mfu, peak_flops

GIB = 2**30


def tables_bytes(config: GemConfig) -> int:
    """Of all embedding tables in fp32, and one fp32 per row for rowwise AdaGrad."""
    return sum(config.schema.tables.values()) * (config.embedding_dim + 1) * 4


def measure(config: GemConfig, batch_size: int, steps: int, device: torch.device, compiled: bool, tables: bool) -> dict:
    """One row of the table."""
    cuda = device.type == "cuda"
    reserved = torch.empty(tables_bytes(config) if tables else 0, dtype=torch.uint8, device=device)
    torch.manual_seed(0)
    with device:
        core = GemCore(config)
    optimizer = torch.optim.AdamW(core.parameters(), lr=1e-4, fused=cuda)
    forward = torch.compile(core) if compiled else core
    lengths = random_lengths(config.schema, batch_size, torch.Generator().manual_seed(1))
    embedded = random_embedded(config, batch_size, lengths, device)
    labels = torch.randint(0, 2, (batch_size, len(config.schema.labels)), device=device).float()
    flops = FlopCount(core.flops(lengths, torch.ones(batch_size)))

    milliseconds = []
    for step in range(steps + 2):  # two to warm up: the optimizer's state is made in the first
        if cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
        with torch.autocast(device.type, torch.bfloat16):
            logits = forward(embedded).logits
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        embedded = embedded._replace(
            sparse=embedded.sparse.detach().requires_grad_(),
            events={n: e._replace(values=e.values.detach().requires_grad_()) for n, e in embedded.events.items()},
        )
        if cuda:
            end.record()
            torch.cuda.synchronize()
            if step >= 2:
                milliseconds.append(begin.elapsed_time(end))
    del reserved
    row = {"batch": batch_size, "TFLOP / step": float(flops.training) / 1e12}
    if not cuda:
        return row
    ms = statistics.median(milliseconds)
    peak = peak_flops(device)
    share = mfu(float(flops.training), ms / 1e3, peak)
    return row | {
        "ms": ms,
        "examples/s": batch_size / ms * 1e3,
        "TFLOP/s": float(flops.training) / ms / 1e9,
        "% of peak": 100 * share if share else float("nan"),
        "peak GiB": torch.cuda.max_memory_allocated() / GIB,
        "of them tables": (tables_bytes(config) if tables else 0) / GIB,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="h200", help="a named configuration of faceter.model.presets")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1024], help="one row of the table each")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--no-tables", action="store_true", help="do not take the memory of the embedding tables")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    try:
        config = GemConfig.from_name(args.model)
    except ConfigError as error:
        print(f"dense_step: {error}", file=sys.stderr)
        return 2
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{args.model} on {name}, torch {torch.__version__}{', compiled' if args.compile else ', eager'}")
    for batch_size in args.batch_size:
        try:
            row = measure(config, batch_size, args.steps, device, args.compile, not args.no_tables)
        except torch.OutOfMemoryError as error:
            row = {"batch": batch_size, "out of memory": str(error).split(". ")[0]}
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        print("  ".join(f"{k} {v:,.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
