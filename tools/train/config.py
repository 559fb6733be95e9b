"""The configuration of a training run: dataclasses, a YAML file, the command line.

A value comes from the command line, else from the file of `--config`, else from the preset's own settings
(`faceter.tools.train.presets`). A YAML file has the nesting of `TrainConfig`; a flag is the field's name
(`reader.batch_size` is `--batch-size`), except for the model's own: `--gem.dim`. The run folder's `config.yaml` is
such a file.

Nothing here imports torch: `--help` and a mistyped flag are answered at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
import yaml

from faceter.data.schema import Schema
from faceter.model.config import ConfigError, GemConfig

DEFAULT_MODEL = "ml100k"

# GemConfig without the schema: that belongs to the data, everything else of the model can be set.
_hints = typing.get_type_hints(GemConfig)
GemOptions = dataclasses.make_dataclass(
    "GemOptions",
    [
        (f.name, _hints[f.name], field(default=f.default, default_factory=f.default_factory))
        for f in dataclasses.fields(GemConfig)
        if f.name != "schema"
    ],
    frozen=True,
    namespace={"__doc__": GemConfig.__doc__},
)


@dataclass(frozen=True)
class ReaderOptions:
    """How rows become batches.

    Args:
        batch_size: rows of a step and process.
        shuffle_rows: rows of the shuffle buffer; 0 = the files' order.
        workers: processes that read ahead; 0 = read between the steps.
        balance: interleave sub-batches sorted by total length, so that batches cost about the same.
        sub_batch: rows of such a sub-batch.
        on_bad_row: stop at a row that is against the schema, or leave it out, count and report it.
    """

    batch_size: int = 1024
    shuffle_rows: int = 100_000
    workers: int = 0
    balance: bool = False
    sub_batch: int = 128
    on_bad_row: Literal["raise", "skip"] = "raise"


@dataclass(frozen=True)
class OptimizerOptions:
    """Rowwise AdaGrad for embedding tables, AdamW for the dense part.

    Args:
        dense_lr: peak learning rate of AdamW.
        beta1: decay of AdamW's mean of gradients.
        beta2: decay of AdamW's mean of squared gradients.
        weight_decay: of the weights of linear maps; biases, norms and learned tokens have none.
        embedding_lr: peak learning rate of rowwise AdaGrad.
        embedding_eps: epsilon of rowwise AdaGrad.
        embedding_weight_decay: decoupled weight decay of whole tables; 0 = none (another does a pass over the tables).
        clip_norm: upper bound of the dense gradient's norm; 0 = none.
        ema_decay: evaluate with an exponential moving average of the dense weights; 0 = with the weights themselves.
        ema_tables: average the embedding tables too (another copy of them, and a pass over them each step).
    """

    dense_lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01
    embedding_lr: float = 0.02
    embedding_eps: float = 1e-8
    embedding_weight_decay: float = 0.0
    clip_norm: float = 1.0
    ema_decay: float = 0.0
    ema_tables: bool = False


@dataclass(frozen=True)
class ScheduleOptions:
    """How long, and the learning rates' factor over time.

    Args:
        epochs: passes over the training part, at most.
        max_steps: steps, at most; 0 = no such limit.
        warmup_steps: the factor rises linearly from 0 to 1 in these.
        decay: of the factor from 1 to `final_factor` over `decay_steps` after the warm-up.
        decay_steps: 0 = until `max_steps`, or else until the end of the last epoch.
        final_factor: the factor at the end of the decay.
    """

    epochs: int = 1
    max_steps: int = 0
    warmup_steps: int = 100
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: int = 0
    final_factor: float = 0.0


@dataclass(frozen=True)
class EvaluationOptions:
    """When the validation part is evaluated, and what follows from it.

    Args:
        evaluate_every: steps between evaluations; 0 = at the end of each epoch only.
        metric: which weights are the best: those with the highest AUC or the lowest NE of the primary task.
        patience: stop after so many evaluations without a better one; 0 = never.
    """

    evaluate_every: int = 0
    metric: Literal["auc", "ne"] = "auc"
    patience: int = 0


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoints in `<run>/checkpoints/step-N`.

    Args:
        checkpoint_every: steps between checkpoints; 0 = with each evaluation only.
        keep: how many of the newest stay; the one with the best weights stays anyway.
        background: write while training goes on, from a copy in host memory.
        resume: go on from the newest good checkpoint of the run folder if there is one (auto), or throw away what
            the folder holds (never).
    """

    checkpoint_every: int = 0
    keep: int = 3
    background: bool = False
    resume: Literal["auto", "never"] = "auto"


@dataclass(frozen=True)
class LoggingOptions:
    """What is shown and written while training.

    Args:
        log_every: steps between lines of `log.jsonl`, TensorBoard points and, without a terminal, printed lines.
        window_rows: newest training rows of this process that the running NE and AUC are computed on.
    """

    log_every: int = 50
    window_rows: int = 20_000


@dataclass(frozen=True)
class TrainConfig:
    """Trains the GEM model on a data set folder (schema.yaml, train/, valid/, test/).

    Args:
        data: the data set folder; none = MovieLens-100K from the installed recbole package (model `ml100k` only).
        model: a named model, on the data's schema; it also sets the defaults of all other options.
        out: the folder to write to; none = runs/<model> in the present folder.
        seed: of the initial weights, the order of rows and dropout.
        device: auto = a CUDA GPU if there is one.
        precision: of the dense part; auto = bf16 autocast on a GPU that has it, else fp32.
        gem: the model's own settings.
    """

    data: Path | None = None
    model: str = DEFAULT_MODEL
    out: Path | None = None
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    reader: tyro.conf.OmitArgPrefixes[ReaderOptions] = field(default_factory=ReaderOptions)
    optimizer: tyro.conf.OmitArgPrefixes[OptimizerOptions] = field(default_factory=OptimizerOptions)
    schedule: tyro.conf.OmitArgPrefixes[ScheduleOptions] = field(default_factory=ScheduleOptions)
    evaluation: tyro.conf.OmitArgPrefixes[EvaluationOptions] = field(default_factory=EvaluationOptions)
    checkpoint: tyro.conf.OmitArgPrefixes[CheckpointOptions] = field(default_factory=CheckpointOptions)
    logging: tyro.conf.OmitArgPrefixes[LoggingOptions] = field(default_factory=LoggingOptions)
    gem: GemOptions = field(default_factory=GemOptions)

    def __post_init__(self):
        checks = {
            "batch_size": self.reader.batch_size > 0,
            "sub_batch": self.reader.sub_batch > 0,
            "shuffle_rows": self.reader.shuffle_rows >= 0,
            "workers": self.reader.workers >= 0,
            "dense_lr": self.optimizer.dense_lr >= 0,
            "embedding_lr": self.optimizer.embedding_lr >= 0,
            "weight_decay": self.optimizer.weight_decay >= 0,
            "embedding_weight_decay": self.optimizer.embedding_weight_decay >= 0,
            "clip_norm": self.optimizer.clip_norm >= 0,
            "ema_decay": 0 <= self.optimizer.ema_decay < 1,
            "epochs": self.schedule.epochs > 0,
            "max_steps": self.schedule.max_steps >= 0,
            "warmup_steps": self.schedule.warmup_steps >= 0,
            "decay_steps": self.schedule.decay_steps >= 0,
            "evaluate_every": self.evaluation.evaluate_every >= 0,
            "patience": self.evaluation.patience >= 0,
            "checkpoint_every": self.checkpoint.checkpoint_every >= 0,
            "keep": self.checkpoint.keep > 0,
            "log_every": self.logging.log_every > 0,
            "window_rows": self.logging.window_rows > 0,
        }
        balance = self.reader.balance
        checks["sub_batch (with --balance: half of batch_size at most)"] = (
            not balance or self.reader.sub_batch <= self.reader.batch_size // 2
        )
        for name, good in checks.items():
            if not good:
                raise ConfigError(f"{name} is out of its range (see `faceter train --help`)")

    def gem_config(self, schema: Schema) -> GemConfig:
        """The model's configuration on a schema.

        Raises:
            ConfigError: the two don't fit.
        """
        return GemConfig(schema=schema, **{f.name: getattr(self.gem, f.name) for f in dataclasses.fields(self.gem)})

    @property
    def run_folder(self) -> Path:
        return self.out or Path("runs") / self.model


def parse(argv: list[str]) -> tuple[TrainConfig, Files]:
    """What a command line asks for.

    Raises:
        ConfigError: an unknown model name, or a configuration file that can't be read or has an unknown key or a value
            of a wrong type.
        DataError: the data's schema can't be read.
        SystemExit: a flag that does not exist or can't be parsed (code 2, after a message), or `--help` (code 0).
    """
    # What the defaults depend on; tyro sees these flags too, for its help and its checks.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "model", "data"):
        first.add_argument(f"--{name}")
    given, _ = first.parse_known_args(argv)
    tree = read_yaml(Path(given.config)) if given.config else {}
    model = given.model or tree.get("model") or DEFAULT_MODEL
    data = given.data or tree.get("data")
    schema = Schema.load(data) if data and not {"-h", "--help"} & set(argv) else None
    default = merge(defaults(str(model), schema), tree, given.config or "")
    default = dataclasses.replace(default, model=str(model))
    parsed = tyro.cli(
        tuple[Annotated[TrainConfig, tyro.conf.arg(name="")], Annotated[Files, tyro.conf.arg(name="")]],
        default=(default, Files()),
        args=argv,
        prog="faceter train",
        description=TrainConfig.__doc__.split("\n\n")[0],
    )
    return parsed


@dataclass(frozen=True)
class Files:
    """Flags that are no part of the configuration.

    Args:
        config: YAML file with the nesting of a run folder's config.yaml; flags win over it.
        replay: do not train: run the batch in this file, which a run that met a non-finite loss has left, and name the
            first module with a non-finite output.
    """

    config: Path | None = None
    replay: Path | None = None


def defaults(model: str, schema: Schema | None) -> TrainConfig:
    """A named model's settings, on its own schema or on the one given.

    Raises:
        ConfigError: no such name.
    """
    from faceter.tools.train.presets import training

    gem = GemConfig.from_name(model, schema)
    gem = GemOptions(**{f.name: getattr(gem, f.name) for f in dataclasses.fields(GemOptions)})
    return dataclasses.replace(training(model), model=model, gem=gem)


def read_yaml(path: Path) -> dict:
    """A YAML mapping.

    Raises:
        ConfigError: no such file, or no such thing in it.
    """
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold a mapping, holds {type(tree).__name__}")
    return tree


T = TypeVar("T")


def merge(config: T, tree: dict, source: str, where: str = "") -> T:
    """`config` with the values of `tree`, a nested mapping with the names of its fields.

    Raises:
        ConfigError: an unknown key or a value of a wrong type; names `source` and the key.
    """
    hints = typing.get_type_hints(type(config))
    values = {}
    for key, value in tree.items():
        here = f"{where}{key}"
        if key not in hints:
            raise ConfigError(f"{source}: unknown key {here!r}; known here: {', '.join(hints)}")
        values[key] = _convert(value, hints[key], getattr(config, key), source, here)
    return dataclasses.replace(config, **values)


def _convert(value, hint, old, source: str, here: str):
    """A YAML value as the type of a field; `old` is the field's present value."""
    wrong = ConfigError(f"{source}: {here} must be {getattr(hint, '__name__', hint)}, is {value!r}")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise wrong
        return merge(old, value, source, f"{here}.")
    if origin is Literal:
        if value not in args:
            raise ConfigError(f"{source}: {here} must be one of {', '.join(map(str, args))}, is {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong
        fresh = args[0]() if dataclasses.is_dataclass(args[0]) else None
        return tuple(_convert(v, args[0], fresh, source, f"{here}[{i}]") for i, v in enumerate(value))
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _convert(value, next(a for a in args if a is not type(None)), old, source, here)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML takes 1e-3, without a point, for a string
        except ValueError:
            raise wrong from None
    if isinstance(value, hint) and isinstance(value, bool) == (hint is bool):
        return value
    raise wrong


def plain(node):
    """Dataclasses to dicts, tuples to lists, paths to strings: what YAML and JSON hold."""
    if dataclasses.is_dataclass(node):
        return {f.name: plain(getattr(node, f.name)) for f in dataclasses.fields(node)}
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, (tuple, list)):
        return [plain(n) for n in node]
    return str(node) if isinstance(node, Path) else node


def to_yaml(config: TrainConfig) -> str:
    """What `--config` reads."""
    return yaml.safe_dump(plain(config), sort_keys=False)
