import subprocess
import sys

import pytest
import yaml

from faceter.data.errors import DataError
from faceter.model.config import ConfigError, GemConfig
from faceter.tools.train import config as c


def parsed(*argv):
    return c.parse(list(argv))[0]


def test_command_line_over_file_over_preset(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: tiny\nseed: 5\nreader: {batch_size: 7, workers: 1}\noptimizer: {dense_lr: 1e-2}\n")
    got = parsed("--config", str(path), "--batch-size", "9", "--gem.dropout", "0.25")
    assert (got.model, got.seed, got.reader.batch_size, got.reader.workers) == ("tiny", 5, 9, 1)
    assert got.optimizer.dense_lr == 0.01
    assert got.gem.dropout == 0.25
    assert got.gem.dim == GemConfig.from_name("tiny").dim  # the model's own settings come with its name
    assert got.schedule.warmup_steps == c.defaults("tiny", None).schedule.warmup_steps


def test_defaults_are_the_presets():
    assert parsed() == c.defaults("ml100k", None)
    assert parsed("--model", "tiny").gem_config(GemConfig.from_name("tiny").schema) == GemConfig.from_name("tiny")
    assert parsed("--model", "tiny").run_folder.as_posix() == "runs/tiny"


def test_what_is_written_is_read_back(tmp_path):
    config = parsed("--model", "tiny", "--evaluate-every", "3", "--gem.events.0.layers", "1", "--out", "x")
    path = tmp_path / "config.yaml"
    path.write_text(c.to_yaml(config))
    assert parsed("--config", str(path)) == config


@pytest.mark.parametrize(
    "text, message",
    [
        ("reader: {bach_size: 7}", r"unknown key 'reader\.bach_size'.*batch_size"),
        ("reader: {batch_size: many}", r"reader\.batch_size must be int, is 'many'"),
        ("reader: {balance: 1}", r"reader\.balance must be bool"),
        ("schedule: {decay: slow}", r"schedule\.decay must be one of constant, linear, cosine, is 'slow'"),
        ("reader: 7", r"reader must be ReaderOptions, is 7"),
        ("gem: {head_hidden: 7}", r"gem\.head_hidden must be"),
        ("gem: {events: [{nam: x}]}", r"unknown key 'gem\.events\[0\]\.nam'"),
        ("optimizer: {dense_lr: fast}", r"optimizer\.dense_lr must be float, is 'fast'"),
        ("- 1", "must hold a mapping"),
        ("a: [", "is not YAML"),
        ("model: big", "no configuration 'big'"),
        ("schedule: {epochs: 0}", "epochs is out of its range"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        parsed("--config", str(path))


def test_missing_file_and_missing_data(tmp_path):
    with pytest.raises(ConfigError, match="can't read"):
        parsed("--config", str(tmp_path / "none.yaml"))
    with pytest.raises(DataError, match="no schema"):
        parsed("--data", str(tmp_path))


def test_unknown_flag_ends_with_code_2(capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--bach-size", "3")
    assert ended.value.code == 2
    assert "bach-size" in capsys.readouterr().err


def test_every_field_is_explained(capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--help")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("rows of a step and process", "stop after so many evaluations", "name the first"):
        assert part in text.replace("│ ", "").replace(" │", ""), part


def test_help_needs_no_torch():
    code = (
        "import sys; from faceter.tools.train.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    env = {"PYTHONPATH": ":".join(sys.path), "PATH": "", "HOME": "/tmp"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"


def test_plain_of_everything_is_yaml():
    config = parsed("--model", "tiny")
    assert yaml.safe_load(c.to_yaml(config)) == c.plain(config)
