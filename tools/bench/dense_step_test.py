"""The benchmark of one dense step: runs anywhere, and says what is wrong."""

from faceter.model.config import GemConfig
from faceter.tools.bench.dense_step import main, tables_bytes


def test_one_row_for_each_batch_size(capsys):
    assert main(["--model", "tiny", "--batch-size", "2", "5", "--steps", "1", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny on CPU")
    assert [line.split("  ")[0] for line in lines[1:]] == ["batch 2", "batch 5"]


def test_unknown_model(capsys):
    assert main(["--model", "gem5"]) == 2
    assert "no configuration 'gem5'" in capsys.readouterr().err


def test_memory_of_tables():
    config = GemConfig.from_name("tiny")
    rows = 50 + 40 + 12 + 5  # user, item (shared by four columns), tags, clicked_kind
    assert tables_bytes(config) == rows * (config.embedding_dim + 1) * 4
