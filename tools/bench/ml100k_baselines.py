"""Known models on MovieLens-100K, on the very split that `faceter data ml100k` writes.

    python -m venv venv-recbole && . venv-recbole/bin/activate
    pip install torch==2.13.0 "numpy<2" "pandas<3" "scipy<1.17" scikit-learn pyarrow pyyaml \
        colorlog==4.7.2 colorama==0.4.4 tqdm tensorboard thop tabulate plotly texttable psutil
    pip install --no-deps recbole==1.2.1
    python -m faceter.tools.bench.ml100k_baselines           # the table, from the values found by --tune
    python -m faceter.tools.bench.ml100k_baselines --tune    # the random search again, on the validation part

Run it in a checkout. RecBole wants an environment of its own: it imports some packages that faceter does not, and its
data loading does not work with pandas 3. Ray, which its metadata asks for, is used by its own tuner only.

DeepFM, AutoInt and DIN are RecBole's, trained by RecBole's trainer and stopped early on the validation AUC. DeepFM and
AutoInt are shown with the ids and side features alone and with the converter's statistics of the past added; RecBole's
DIN reads the item, its features and the same of the liked films of the history, no user and no statistics. Logistic
regression is scikit-learn's on one-hot columns; its "refit" rows learn from the validation part too, after C was chosen
on it. Gradient boosting is scikit-learn's on the statistics, as a reference without any id.

NE is the log loss over the entropy of the test part's base rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from faceter.data.schema import DenseColumn, Schema
from faceter.tools.bench.ml100k_table import Result, header, row

LABEL = "like"
PARTS = ("train", "valid", "test")
USER_COLUMNS = ("age_bucket", "gender", "occupation", "zip_area")
ITEM_COLUMNS = ("year", "genres")
# One id for a film's set of genres: DIN embeds each film of the history, and bags of ids cost it three times as much.
DIN_ITEM_COLUMNS = ("year", "genre_set")
HISTORY_LENGTH = 30
SEEDS = (0, 1, 2)
MAX_EPOCHS = 40
PATIENCE = 2

# Found by --tune: random trials for each model and input, best validation AUC with seed 0.
TUNED: dict[str, dict] = {
    "DeepFM": {
        "learning_rate": 0.002462918524864707,
        "weight_decay": 0.0003,
        "embedding_size": 16,
        "mlp_hidden_size": [128, 128],
        "train_batch_size": 2048,
        "dropout_prob": 0.2,
    },
    "AutoInt": {
        "learning_rate": 0.007991138093152281,
        "weight_decay": 1e-05,
        "embedding_size": 32,
        "mlp_hidden_size": [128, 128],
        "train_batch_size": 1024,
        "dropout_probs": [0.2, 0.2, 0.2],
        "n_layers": 3,
        "attention_size": 16,
    },
    "DIN": {
        "learning_rate": 0.0004857635399317891,
        "weight_decay": 0.0,
        "embedding_size": 32,
        "mlp_hidden_size": [64, 64],
        "train_batch_size": 2048,
        "dropout_prob": 0.2,
    },
    "DeepFM + statistics": {
        "learning_rate": 0.0003871257432785236,
        "weight_decay": 0.003,
        "embedding_size": 32,
        "mlp_hidden_size": [64, 64],
        "train_batch_size": 2048,
        "dropout_prob": 0.0,
    },
    "AutoInt + statistics": {
        "learning_rate": 0.009359507748411275,
        "weight_decay": 0.0001,
        "embedding_size": 32,
        "mlp_hidden_size": [128, 128],
        "train_batch_size": 2048,
        "dropout_probs": [0.6, 0.6, 0.6],
        "n_layers": 3,
        "attention_size": 16,
    },
}
TUNED_C = {"one-hot": 0.4, "one-hot + statistics": 0.1}
# A trial of DeepFM takes 10 seconds, one of AutoInt up to 3 minutes, one of DIN up to 13.
TRIALS = {"DeepFM": 20, "AutoInt": 12, "DIN": 12}
# DIN did best without any, the others with the strongest of these; they are offered stronger ones.
_DECAYS = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3)
WEIGHT_DECAYS = {"DeepFM": _DECAYS, "AutoInt": _DECAYS, "DIN": (0.0, 1e-6, 1e-5, 1e-4, 3e-4)}


def read_parts(folder: Path, schema: Schema) -> dict[str, pa.Table]:
    """Part -> all its rows, columns of the schema."""
    return {part: pq.read_table(folder / part, columns=list(schema.columns)) for part in PARTS}


def statistics(table: pa.Table, columns: tuple[DenseColumn, ...]) -> np.ndarray:
    """(N, n) float32: the dense columns as the model sees them (log1p where asked for, normalised)."""
    out = []
    for column in columns:
        x = table[column.name].to_numpy().astype(np.float64)
        x = np.sign(x) * np.log1p(np.abs(x)) if column.log1p else x
        out.append((x - column.mean) / column.std)
    return np.stack(out, axis=1).astype(np.float32)


def one_hot(table: pa.Table, schema: Schema, columns: tuple[str, ...]) -> sparse.csr_matrix:
    """(N, sum of the columns' rows): ones at each id of each column, lists of ids included."""
    sizes = {column.name: column.num_embeddings for column in schema.sparse}
    blocks = []
    for name in columns:
        values = table[name].combine_chunks()
        if pa.types.is_list(values.type):
            offsets, ids = values.offsets.to_numpy(), values.flatten().to_numpy()
        else:
            offsets, ids = np.arange(len(values) + 1), values.to_numpy()
        ones = np.ones(len(ids), np.float32)
        blocks.append(sparse.csr_matrix((ones, ids, offsets - offsets[0]), shape=(len(values), sizes[name])))
    return sparse.hstack(blocks).tocsr()


def base_entropy(labels: np.ndarray) -> float:
    """Log loss of a model that always says the base rate."""
    rate = labels.mean()
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))


def normalised_entropy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Log loss over that of a model that always says the base rate."""
    return log_loss(labels, probabilities) / base_entropy(labels)


def scored(labels: dict[str, np.ndarray], predict: Callable[[str], np.ndarray], start: float, refit=False) -> Result:
    """Scores a fitted model.

    Args:
        labels: part -> (N,).
        predict: part -> (N,) probabilities.
        start: `time.perf_counter()` at the start of training.
        refit: the model learned from the validation part.
    """
    valid = float("nan") if refit else roc_auc_score(labels["valid"], predict("valid"))
    p = predict("test")
    return Result(
        valid,
        roc_auc_score(labels["test"], p),
        normalised_entropy(labels["test"], p),
        time.perf_counter() - start,
    )


class ScikitModels:
    """Logistic regression and gradient boosting.

    Args:
        parts: part -> rows.
        schema: of the rows.
    """

    def __init__(self, parts: dict[str, pa.Table], schema: Schema):
        ids = ("user_id", "item_id", *USER_COLUMNS, *ITEM_COLUMNS)
        self.labels = {part: table[LABEL].to_numpy().astype(np.int64) for part, table in parts.items()}
        ones = {part: one_hot(table, schema, ids) for part, table in parts.items()}
        stats = {part: statistics(table, schema.dense) for part, table in parts.items()}
        self.inputs = {
            "one-hot": ones,
            "one-hot + statistics": {p: sparse.hstack([ones[p], sparse.csr_matrix(stats[p])]).tocsr() for p in parts},
        }
        self.stats = stats

    def logistic(self, inputs: str, c: float, refit: bool) -> Result:
        x, y = self.inputs[inputs], self.labels
        start = time.perf_counter()
        rows = ("train", "valid") if refit else ("train",)
        model = LogisticRegression(C=c, max_iter=1000)
        model.fit(sparse.vstack([x[p] for p in rows]), np.concatenate([y[p] for p in rows]))
        return scored(y, lambda part: model.predict_proba(x[part])[:, 1], start, refit)

    def boosting(self, seed: int) -> Result:
        start = time.perf_counter()
        model = HistGradientBoostingClassifier(
            learning_rate=0.03,
            max_iter=1000,
            max_leaf_nodes=15,
            min_samples_leaf=100,
            l2_regularization=10.0,
            max_features=0.5,
            scoring="roc_auc",
            early_stopping=True,
            n_iter_no_change=60,
            random_state=seed,
        )
        x, y = self.stats, self.labels
        model.fit(x["train"], y["train"], X_val=x["valid"], y_val=y["valid"])
        return scored(y, lambda part: model.predict_proba(x[part])[:, 1], start)


def liked(table: pa.Table) -> list[list[int]]:
    """The items of each row's history that were rated 4 or 5, oldest first: what a click history is elsewhere."""
    pairs = zip(table["rated_item"].to_pylist(), table["rated_rating"].to_pylist(), strict=True)
    return [[i for i, r in zip(items, ratings, strict=True) if r >= 4] for items, ratings in pairs]


def write_atomic(folder: Path, parts: dict[str, pa.Table], schema: Schema) -> None:
    """The split as RecBole's atomic files: ml100k.{train,valid,test}.inter, .user and .item.

    The history is already in each row (`item_id_list`), so that RecBole makes none of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dense = [column.name for column in schema.dense]
    for part, table in parts.items():
        columns = {
            "user_id:token": table["user_id"].to_pylist(),
            "item_id:token": table["item_id"].to_pylist(),
            "label:float": table[LABEL].to_pylist(),
            "item_id_list:token_seq": [" ".join(map(str, ids[-HISTORY_LENGTH:])) for ids in liked(table)],
        }
        values = statistics(table, schema.dense)
        columns |= {f"{name}:float": [f"{v:.5f}" for v in values[:, k]] for k, name in enumerate(dense)}
        _write(folder / f"ml100k.{part}.inter", columns)
    everything = pa.concat_tables(parts.values())
    for name, key, features in (("user", "user_id", USER_COLUMNS), ("item", "item_id", (*ITEM_COLUMNS, "genre_set"))):
        rows = {row[key]: row for row in everything.select([key, *features]).to_pylist()}
        columns = {f"{key}:token": list(rows)}
        for feature in features:
            values = [row[feature] for row in rows.values()]
            if isinstance(values[0], list):
                columns[f"{feature}:token_seq"] = [" ".join(map(str, ids)) for ids in values]
            else:
                columns[f"{feature}:token"] = values
        _write(folder / f"ml100k.{name}", columns)


def _write(path: Path, columns: dict[str, list]) -> None:
    with path.open("w") as file:
        file.write("\t".join(columns) + "\n")
        file.writelines("\t".join(map(str, row)) + "\n" for row in zip(*columns.values(), strict=True))


def draw(model: str, rng: np.random.Generator) -> dict:
    """One random trial: RecBole's settings for a model."""
    settings = {
        "learning_rate": float(10 ** rng.uniform(-3.5, -2)),
        "weight_decay": float(rng.choice(WEIGHT_DECAYS[model])),
        "embedding_size": int(rng.choice([8, 16, 32])),
        "mlp_hidden_size": [[32, 32], [64, 64], [128, 128]][rng.integers(3)],
        "train_batch_size": int(rng.choice([1024, 2048, 4096])),
    }
    rate = float(rng.choice([0.0, 0.2, 0.4, 0.6]))
    if model == "AutoInt":
        layers = int(rng.integers(1, 4))
        settings |= {"dropout_probs": [rate] * 3, "n_layers": layers, "attention_size": int(rng.choice([8, 16]))}
    else:
        settings["dropout_prob"] = rate
    return settings


class RecboleModels:
    """RecBole's models on the atomic files in `folder / "ml100k"`."""

    def __init__(self, folder: Path, labels: dict[str, np.ndarray], schema: Schema):
        self.folder = folder
        self.labels = labels
        self.dense = [column.name for column in schema.dense]

    def run(self, model: str, with_statistics: bool, settings: dict, seed: int, test: bool = True) -> Result:
        """Trains until the validation AUC has not risen for `PATIENCE` epochs, and scores the best epoch's weights.

        Args:
            model: RecBole's name.
            with_statistics: add the dense columns.
            settings: RecBole's.
            seed: of weights and order.
            test: score the test part too; otherwise its numbers are NaN.
        """
        import torch
        from recbole.config import Config
        from recbole.data import create_dataset, data_preparation
        from recbole.trainer import Trainer
        from recbole.utils import get_model, init_seed

        sequential = model == "DIN"
        inter = ["user_id", "item_id", "label"]
        inter += ["item_id_list"] if sequential else self.dense if with_statistics else []
        config_dict = {
            "data_path": str(self.folder),
            "benchmark_filename": list(PARTS),
            "load_col": {
                "inter": inter,
                "user": ["user_id", *USER_COLUMNS],
                "item": ["item_id", *(DIN_ITEM_COLUMNS if sequential else ITEM_COLUMNS)],
            },
            "numerical_features": self.dense if with_statistics else [],
            "normalize_all": False,
            "LABEL_FIELD": "label",
            "threshold": None,
            "alias_of_item_id": ["item_id_list"] if sequential else None,
            "MAX_ITEM_LIST_LENGTH": HISTORY_LENGTH,
            "train_neg_sample_args": None,
            "eval_args": {
                "split": {"LS": "valid_and_test"},
                "order": "TO" if sequential else "RO",
                "group_by": None,
                "mode": "labeled",
            },
            "metrics": ["AUC", "LogLoss"],
            "valid_metric": "AUC",
            "metric_decimal_place": 8,
            "epochs": MAX_EPOCHS,
            "stopping_step": PATIENCE,
            "eval_batch_size": 16384,
            "seed": seed,
            "reproducibility": True,
            "use_gpu": False,
            "state": "ERROR",
            "show_progress": False,
            "checkpoint_dir": str(self.folder / "saved"),
            "log_wandb": False,
            **settings,
        }
        config = Config(model=model, dataset="ml100k", config_dict=config_dict)
        init_seed(seed, True)
        dataset = create_dataset(config)
        train, valid, test_data = data_preparation(config, dataset)
        start = time.perf_counter()
        init_seed(seed, True)
        network = get_model(model)(config, train.dataset).to(config["device"])
        trainer = Trainer(config, network)
        trainer.fit(train, valid, saved=True, show_progress=False)
        best = torch.load(trainer.saved_model_file, weights_only=False)  # RecBole's file holds its Config too
        network.load_state_dict(best["state_dict"])
        Path(trainer.saved_model_file).unlink()

        scores = {}
        for part, data in (("valid", valid), ("test", test_data)):
            if part == "test" and not test:
                scores[part] = {"auc": float("nan"), "logloss": float("nan")}
                continue
            scores[part] = trainer.evaluate(data, load_best_model=False, show_progress=False)
        return Result(
            scores["valid"]["auc"],
            scores["test"]["auc"],
            scores["test"]["logloss"] / base_entropy(self.labels["test"]),
            time.perf_counter() - start,
        )


RECBOLE = (("DeepFM", False), ("AutoInt", False), ("DIN", False), ("DeepFM", True), ("AutoInt", True))


def name_of(model: str, with_statistics: bool) -> str:
    return f"{model} + statistics" if with_statistics else model


def tune(models: RecboleModels, scikit: ScikitModels, only: str | None) -> None:
    """Prints the best settings of each model, or of one; the test part is not read."""
    if only is None:
        for inputs in scikit.inputs:
            found = {c: scikit.logistic(inputs, c, False).valid_auc for c in (0.03, 0.1, 0.2, 0.4, 0.8, 1.6)}
            print("logistic regression", inputs, found, flush=True)
    for model, with_statistics in RECBOLE:
        name = name_of(model, with_statistics)
        if only not in (None, name):
            continue
        rng = np.random.default_rng(0)
        best = (0.0, {})
        for trial in range(TRIALS[model]):
            settings = draw(model, rng)
            result = models.run(model, with_statistics, settings, seed=0, test=False)
            best = max(best, (result.valid_auc, settings), key=lambda x: x[0])
            print(f"{name} {trial} {result.valid_auc:.4f} {result.seconds:.0f} s {json.dumps(settings)}", flush=True)
        print(f"BEST {name} {best[0]:.4f} {json.dumps(best[1])}", flush=True)


def compare(models: RecboleModels, scikit: ScikitModels, only: str | None) -> None:
    """Prints the table, or one model's line of it."""
    print(f"Python {platform.python_version()}, {len(SEEDS)} seeds, mean ± standard deviation", flush=True)
    print(header(), flush=True)
    if only is None:
        for inputs, c in TUNED_C.items():
            print(row(f"logistic regression, {inputs}", [scikit.logistic(inputs, c, False)]), flush=True)
            print(row(f"logistic regression, {inputs}, refit", [scikit.logistic(inputs, c, True)]), flush=True)
        print(row("gradient boosting, statistics", [scikit.boosting(seed) for seed in SEEDS]), flush=True)
    for model, with_statistics in RECBOLE:
        name = name_of(model, with_statistics)
        if only in (None, name):
            print(row(name, [models.run(model, with_statistics, TUNED[name], seed) for seed in SEEDS]), flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="converted data set folder; converted anew if left out")
    parser.add_argument("--tune", action="store_true", help="search again instead of printing the table")
    parser.add_argument("--only", choices=[name_of(*key) for key in RECBOLE], help="this model alone")
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data and args.data.resolve()
        if folder is None:
            from faceter.data.convert import ml100k

            folder = Path(temporary) / "converted"
            ml100k.convert(folder)
        schema = Schema.load(folder)
        parts = read_parts(folder, schema)
        scikit = ScikitModels(parts, schema)
        write_atomic(Path(temporary) / "ml100k", parts, schema)
        models = RecboleModels(Path(temporary), scikit.labels, schema)
        with contextlib.chdir(temporary):  # RecBole writes TensorBoard files to the working folder
            if args.tune:
                tune(models, scikit, args.only)
            else:
                compare(models, scikit, args.only)


if __name__ == "__main__":
    main()
