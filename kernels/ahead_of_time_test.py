"""Every config of every table compiles for its GPU, which need not be there: no spills, and tensor instructions."""

import json
import os

import pytest

os.environ["TRITON_INTERPRET"] = "0"  # before the kernels are made
pytest.importorskip("triton")

from faceter.kernels.ahead_of_time import HEAD_DIMS, INSTRUCTIONS, compile_for, expected_instruction, kernels
from faceter.kernels.configs import TABLES, Key, table


def rows(arch):
    """A row for each that compiles to something else: lengths are not compiled in."""
    found = {}
    for row in json.loads((TABLES / f"{arch}.json").read_text())["rows"]:
        key = Key(**row["key"]).of_all_lengths
        found.setdefault((key, tuple(row["config"].items())), row.get("spills", 0))
    return [(arch, key, dict(config), spills) for (key, config), spills in found.items()]


def name(value):
    if isinstance(value, Key):
        return f"{value.kernel}-{value.bits}-{value.head_dim}-{value.variant}".replace(" ", "_")
    return "x".join(map(str, value.values())) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("arch, key, config, spills", [row for arch in INSTRUCTIONS for row in rows(arch)], ids=name)
def test_a_config_of_a_table(arch, key, config, spills):
    compiled = compile_for(kernels()[key.kernel][0], key, config, arch)
    # In fp32, which tensor cores don't have, a thread's operands of a large head don't fit; the table says by how much.
    assert compiled.spills <= (0 if key.bits == 16 else spills)
    assert expected_instruction(key, config, arch) in (None, compiled.tensor_instruction)


@pytest.mark.parametrize("arch", INSTRUCTIONS)
def test_a_table_has_every_kernel_head_dim_and_variant(arch):
    wanted = {
        Key(kernel, bits, dim, variant)
        for kernel, (_, _, variants) in kernels().items()
        for dim in HEAD_DIMS
        for bits, chosen in ((16, variants), (32, ("",)))
        for variant in chosen
    }
    assert wanted <= set(table(arch))
