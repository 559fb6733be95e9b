"""How fast the Parquet reader is against a plain scan of the same columns, and whether its memory stays flat.

    python -m faceter.tools.bench.reader              # rows/s
    python -m faceter.tools.bench.reader --memory     # resident memory over one pass of a 2 GiB file
    python -m faceter.tools.bench.reader --memory --plot memory.png

The plain scan is `ParquetFile.read_row_group(i, columns)` over all row groups, once with one thread and once with
pyarrow's own threads; it decodes and throws away. The reader also checks every value, shuffles, collates into a
`Batch`, and hands the batches to the main process, which touches every tensor (a sum over one element per page) so that
no page stays unread. All variants take turns in every round; the table shows medians, and CPU time (user and system,
workers included), on which other load bears less. Data is generated into a temporary folder and deleted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from faceter.data.reader import ParquetReader
from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn

_IDS = 1_000_000
_PAGE = 4096


def bench_schema() -> Schema:
    """32 columns: 2 labels, 8 dense, 10 scalar and 1 multi-valued id column, 3 event types, time and domain."""
    groups = (
        SequenceGroup(
            "click", (SparseColumn("click_ad", _IDS, "ad"), SparseColumn("click_cat", _IDS)), (), "click_time"
        ),
        SequenceGroup(
            "view", (SparseColumn("view_ad", _IDS, "ad"),), (DenseColumn("view_dwell", log1p=True),), "view_time"
        ),
        SequenceGroup("buy", (SparseColumn("buy_ad", _IDS, "ad"),), (DenseColumn("buy_price"),), "buy_time"),
    )
    return Schema(
        "bench",
        (Label("click"), Label("buy")),
        tuple(DenseColumn(f"dense{i}", mean=1.0, std=2.0) for i in range(8)),
        (*(SparseColumn(f"id{i}", _IDS) for i in range(10)), SparseColumn("tags", _IDS)),
        groups,
        "time",
        domain=Domain("surface", ("feed", "reels", "search")),
    )


def bench_rows(rows: int, mean_length: float, rng: np.random.Generator) -> pa.Table:
    """Rows for `bench_schema`: log-normal history lengths (sigma 1), ids with a skewed popularity."""

    def ids(n):
        return pa.array((rng.random(n) ** 4 * _IDS).astype(np.int64))

    def lists(lengths, child):
        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), child)

    columns: dict[str, pa.Array] = {name: pa.array(rng.integers(0, 2, rows), pa.int8()) for name in ("click", "buy")}
    columns |= {f"dense{i}": pa.array(rng.normal(0, 1, rows), pa.float32()) for i in range(8)}
    columns |= {f"id{i}": ids(rows) for i in range(10)}
    tags = rng.integers(0, 6, rows)
    columns["tags"] = lists(tags, ids(tags.sum()))
    for group, share in (("click", 1.0), ("view", 2.0), ("buy", 0.2)):
        lengths = np.minimum(rng.lognormal(np.log(mean_length * share) - 0.5, 1.0, rows), 2000).astype(np.int64)
        total = int(lengths.sum())
        columns[f"{group}_ad"] = lists(lengths, ids(total))
        columns[f"{group}_time"] = lists(lengths, pa.array(1_700_000_000 + rng.integers(0, 10**7, total)))
        if group == "click":
            columns["click_cat"] = lists(lengths, ids(total))
        else:
            name = {"view": "view_dwell", "buy": "buy_price"}[group]
            columns[name] = lists(lengths, pa.array(rng.random(total), pa.float32()))
    columns["time"] = pa.array(1_710_000_000 + rng.integers(0, 10**6, rows))
    columns["surface"] = pa.array(np.array(["feed", "reels", "search"])[rng.integers(0, 3, rows)])
    return pa.table(columns)


def write_data(file: Path, size: int, row_group: int, mean_length: float) -> int:
    """Writes row groups until the file has `size` bytes; returns the number of rows."""
    rng, rows = np.random.default_rng(0), 0
    first = bench_rows(row_group, mean_length, rng)
    with pq.ParquetWriter(file, first.schema, compression="snappy") as writer:
        while file.stat().st_size < size:
            writer.write_table(bench_rows(row_group, mean_length, rng), row_group_size=row_group)
            rows += row_group
    return rows


def scan(file: Path, columns: list[str], threads: bool) -> int:
    """The plain scan; returns the number of rows."""
    with pq.ParquetFile(file) as parquet:
        return sum(
            parquet.read_row_group(i, columns=columns, use_threads=threads).num_rows
            for i in range(parquet.num_row_groups)
        )


def touch(batch) -> int:
    """Reads one element of every page of every tensor; returns the number of rows."""
    tensors = [batch.dense, batch.labels, batch.weights, batch.timestamps, batch.domains]
    tensors += [t for kjt in (batch.sparse, batch.sequence_ids) for t in (kjt.values(), kjt.lengths())]
    tensors += [t for event in batch.events.values() for t in (event.offsets, event.timestamps, event.dense)]
    for tensor in tensors:
        tensor.reshape(-1)[:: _PAGE // tensor.element_size()].sum()
    return batch.batch_size


def read(file: Path, **options) -> int:
    """One epoch of the reader; returns the number of rows."""
    with ParquetReader(file, bench_schema(), 1024, **options) as reader:
        return sum(touch(batch) for batch in reader.epoch())


def speed(folder: Path, args: argparse.Namespace) -> None:
    file = folder / "data.parquet"
    rows = write_data(file, int(args.gib * 2**30), args.row_group, args.mean_length)
    print(f"{rows} rows, {file.stat().st_size / 2**20:.0f} MiB, {pq.read_metadata(file).num_row_groups} row groups\n")
    columns = list(bench_schema().columns)
    shuffled = {"shuffle_rows": 8192}
    variants = {
        "plain scan, 1 thread": lambda: scan(file, columns, False),
        f"plain scan, {os.cpu_count()} threads": lambda: scan(file, columns, True),
        "reader, 0 workers, shuffled": lambda: read(file, workers=0, **shuffled),
        "reader, 1 worker, shuffled": lambda: read(file, workers=1, **shuffled),
        "reader, 2 workers, file order": lambda: read(file, workers=2),
        "reader, 2 workers, shuffled": lambda: read(file, workers=2, **shuffled),
        "reader, 2 workers, shuffled, balanced": lambda: read(file, workers=2, balance=True, **shuffled),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    pa.set_cpu_count(os.cpu_count())  # also where OMP_NUM_THREADS says otherwise
    scan(file, columns, True)  # the file is in the page cache from here on
    for _ in range(args.rounds):
        for name, variant in variants.items():
            begin, begin_cpu = time.perf_counter(), sum(os.times()[:4])
            assert variant() == rows
            times[name].append(time.perf_counter() - begin)
            cpu[name].append(sum(os.times()[:4]) - begin_cpu)
    medians = {name: statistics.median(t) for name, t in times.items()}
    one, many = list(medians.values())[:2]
    print("| variant | rows/s (median) | slowest | fastest | % of scan, 1 thread | % of scan, threads | CPU us/row |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, seconds in medians.items():
        cells = [rows / seconds, rows / max(times[name]), rows / min(times[name])]
        shown = " | ".join(f"{cell:,.0f}" for cell in cells)
        print(f"| {name} | {shown} | {100 * one / seconds:.0f} | {100 * many / seconds:.0f} |", end="")
        print(f" {1e6 * statistics.median(cpu[name]) / rows:.1f} |")


def resident(pid: int) -> tuple[float, float, float]:
    """(RSS, its shared memory, PSS) of a process in MiB."""
    found = {}
    for path in (f"/proc/{pid}/status", f"/proc/{pid}/smaps_rollup"):
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key in ("VmRSS", "RssShmem", "Pss"):
                found[key] = int(value.split()[0]) / 1024
    return found["VmRSS"], found["RssShmem"], found["Pss"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory(folder: Path, args: argparse.Namespace) -> None:
    file = folder / "data.parquet"
    rows = write_data(file, int(args.gib * 2**30), args.row_group, args.mean_length)
    size = file.stat().st_size / 2**20
    print(f"{rows} rows, {size:.0f} MiB, {pq.read_metadata(file).num_row_groups} row groups, 2 workers, buffer 8192\n")
    print("| % read | RSS main | RSS workers | of which shared (all) | PSS main + workers | unit |")
    print("|---:|---:|---:|---:|---:|---|")
    done, next_mark, curve = 0, 10, []
    with ParquetReader(file, bench_schema(), 1024, workers=2, shuffle_rows=8192) as reader:
        for batch in reader.epoch():
            done += touch(batch)
            percent = 100 * done / rows
            last = percent >= 100
            if not last and len(curve) > percent:  # one sample per percent
                continue
            # At the very end the workers have gone.
            samples = [resident(pid) for pid in (os.getpid(), *children(os.getpid()))]
            total = [sum(column) for column in zip(*samples, strict=True)]
            curve.append((percent, total[2]))
            if percent >= next_mark or last:
                workers = sum(s[0] for s in samples[1:])
                print(f"| {percent:.0f} | {samples[0][0]:.0f} | {workers:.0f} | {total[1]:.0f} | {total[2]:.0f} | MiB")
                next_mark += 10
    settled = [pss for percent, pss in curve if 10 <= percent < 95]
    print(f"\nPSS between 10 % and 95 %: {min(settled):.0f} to {max(settled):.0f} MiB, file {size:.0f} MiB")
    if args.plot:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(7, 4))
        axes.plot(*zip(*curve, strict=True))
        axes.set(xlabel="% of the file read", ylabel="PSS of main + workers (MiB)", ylim=(0, None))
        axes.set_title(f"Reader over a {size / 1024:.1f} GiB file, 2 workers")
        figure.savefig(args.plot, dpi=120, bbox_inches="tight")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="resident memory over one pass instead of rows/s")
    parser.add_argument("--gib", type=float, help="size of the file (default: 0.25, with --memory 2)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds in which all variants take turns")
    parser.add_argument("--row-group", type=int, default=8192, help="rows per row group")
    parser.add_argument("--mean-length", type=float, default=50.0, help="mean history length of the event type `click`")
    parser.add_argument("--plot", type=Path, help="save the memory curve as a picture")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    args = parser.parse_args(argv)
    args.gib = args.gib or (2.0 if args.memory else 0.25)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        free = shutil.disk_usage(name).free
        if free < 2 * args.gib * 2**30:
            print(f"only {free / 2**30:.1f} GiB free in {name}: name another place with --folder", file=sys.stderr)
            return 2
        print(
            f"{os.cpu_count()} cores, pyarrow {pa.__version__}, numpy {np.__version__}, python {sys.version.split()[0]}"
        )
        (memory if args.memory else speed)(Path(name), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
