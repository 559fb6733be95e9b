"""Makes the table of a GPU: for each key the fastest config that does not spill or, not measured, the first such."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from faceter.kernels.ahead_of_time import HEAD_DIMS, compile_for, expected_instruction, kernels
from faceter.kernels.configs import TABLES, Config, Key
from faceter.kernels.tuning import unfit


def make_table(arch: str, measured: dict | None, processes: int) -> dict:
    """The content of `tuned/<arch>.json`.

    Args:
        arch: "sm_90".
        measured: what `measure` returned on such a GPU, or None.
        processes: that compile side by side.
    """
    times = sorted(measured["times"], key=lambda t: t["milliseconds"]) if measured else []
    keys = [
        Key(kernel, bits, dim, variant)
        for kernel, (_, _, variants) in kernels().items()
        for bits in (16, 32)
        for dim in HEAD_DIMS
        for variant in (variants if bits == 16 else ("",))
    ]
    own = [[t for t in times if Key(**t["key"]).of_all_lengths == key] for key in keys]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        rows = [row for part in pool.map(_rows_of_key, keys, own, [arch] * len(keys)) for row in part]
    about = {"device": measured["device"], "torch": measured["torch"]} if measured else {}
    return about | {"rows": rows}


def _rows_of_key(key: Key, times: list[dict], arch: str) -> list[dict]:
    kernel, candidates, _ = kernels()[key.kernel]
    return choose(key, times, candidates[key.bits], _spills(kernel, key, arch))


def _spills(kernel: Callable, key: Key, arch: str) -> Callable[[Config], int]:
    """Config -> bytes that it spills; very many where it lacks the matrix instruction that it should have."""

    @lru_cache
    def spills(config: tuple[tuple[str, int], ...]) -> int:
        config = dict(config)
        try:
            compiled = compile_for(kernel, key, config, arch)
        except Exception as error:
            if not unfit(error):
                raise
            return 1 << 30
        fitting = expected_instruction(key, config, arch) in (None, compiled.tensor_instruction)
        return compiled.spills if fitting else 1 << 30

    return lambda config: spills(tuple(config.items()))


def choose(key: Key, times: list[dict], candidates: list[Config], spills: Callable[[Config], int]) -> list[dict]:
    """A row for each measured pair of lengths and one for all others: what is fastest where both are long.

    Args:
        key: of all lengths.
        times: key, config and milliseconds of measurements, the fastest first.
        candidates: in the order of preference where nothing was measured.
        spills: bytes that a config spills.
    """
    fastest = {}
    for t in times:
        lengths = (t["key"]["rows"], t["key"]["loop"])
        if lengths not in fastest and spills(t["config"]) == 0:
            fastest[lengths] = {"key": t["key"], "config": t["config"], "milliseconds": round(t["milliseconds"], 4)}
    long = next((row for (rows, loop), row in fastest.items() if rows[0] == loop[0] == ">"), None)
    config = long["config"] if long else _least_spills(candidates, spills)
    general = {"key": asdict(key), "config": dict(config), "spills": spills(config)}
    return [*(fastest[lengths] for lengths in sorted(fastest)), general]


def _least_spills(candidates: list[Config], spills: Callable[[Config], int]) -> Config:
    """The first that doesn't, or that spills least."""
    best = candidates[0]
    for config in candidates:
        if spills(config) < spills(best):
            best = config
        if spills(best) == 0:
            break
    return best


def write_table(arch: str, content: dict, folder: Path = TABLES) -> Path:
    """Writes it, a row on each line."""
    about = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in content.items() if name != "rows")
    rows = ",\n  ".join(json.dumps(row) for row in content["rows"])
    file = folder / f"{arch}.json"
    file.write_text(f'{{{about}"rows": [\n  {rows}\n]}}\n')
    return file
