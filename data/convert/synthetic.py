"""A generated ads data set of any size, with skewed history lengths and a signal whose best possible NE is known.

Rows come in order of time from one of three surfaces (the domain). A user (Zipf) is shown an ad (Zipf); each event type
has a history of log-normal length, of which the events are ads (Zipf) at exponential intervals before the request.
Ads and users have latent vectors z. With e over the events of a type, dt their age and normal noise variables x:

    interest_type = z_ad . sum_e w_e z_e / sqrt(sum_e w_e^2),   w_e = exp(-dt / 1 day), 0 for an empty history
    logit_task    = bias_task[domain] + a_task z_user . z_ad + sum_type b_task,type interest_type + c_task . x

and each label is Bernoulli(sigmoid(logit)): no model can have a lower expected log loss than these probabilities have.
`synthetic.json` in the folder holds the expected NE and AUC of these probabilities per split and task ("bayes").
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from faceter.data.convert.folder import FolderWriter
from faceter.data.errors import DataError
from faceter.data.schema import DenseColumn, Domain, Label, Schema, SequenceGroup, SparseColumn

INFO_FILE = "synthetic.json"
TASKS = ("click", "conversion")
SURFACES = ("feed", "story", "search")
# Event type -> (share of `mean_length`, scale of its interest per task).
EVENT_TYPES = {"clicked": (1.0, (1.0, 0.5)), "seen": (2.0, (0.6, 0.3)), "bought": (0.2, (0.8, 1.2))}
LATENT = 4
NUM_DENSE = 8
DAY = 86_400
START = 1_700_000_000
_BINS = 1 << 16


@dataclass(frozen=True)
class SyntheticConfig:
    """What is generated.

    Args:
        rows: rows of the training part.
        eval_rows: rows of the validation part, and of the test part.
        num_users: users (ids 1 to num_users).
        num_ads: ads.
        num_categories: categories of ads.
        mean_length: mean history length of the event type `clicked` (`seen` has twice, `bought` a fifth of it), before
            lengths are cut at `max_length`.
        max_length: longest history.
        length_sigma: sigma of the log-normal lengths (1.0: the 99th percentile is 6 times the mean).
        zipf: exponent of the ids' popularity, other than 1.
        seed: the same seed and configuration give the same files.
    """

    rows: int = 100_000
    eval_rows: int = 10_000
    num_users: int = 100_000
    num_ads: int = 50_000
    num_categories: int = 200
    mean_length: float = 30.0
    max_length: int = 2000
    length_sigma: float = 1.0
    zipf: float = 1.1
    seed: int = 0

    def __post_init__(self):
        for name in ("rows", "eval_rows", "num_users", "num_ads", "num_categories", "max_length"):
            if getattr(self, name) < 1:
                raise DataError(f"synthetic data: {name} must be at least 1, is {getattr(self, name)}")
        if not (self.mean_length > 0 and self.length_sigma > 0):
            raise DataError("synthetic data: mean_length and length_sigma must be positive")
        if not self.zipf > 0 or self.zipf == 1:
            raise DataError(f"synthetic data: zipf must be positive and not 1, is {self.zipf}")


def schema(config: SyntheticConfig) -> Schema:
    """The schema of the generated data. Ids start at 1."""
    ads, categories = config.num_ads + 1, config.num_categories + 1
    return Schema(
        name="synthetic",
        labels=tuple(Label(task) for task in TASKS),
        dense=tuple(DenseColumn(f"x{n}") for n in range(NUM_DENSE)),
        sparse=(
            SparseColumn("user", config.num_users + 1),
            SparseColumn("ad", ads, table="ad"),
            SparseColumn("category", categories, table="category"),
            SparseColumn("interests", categories, table="interest"),
        ),
        sequences=tuple(
            SequenceGroup(
                name=event,
                ids=(
                    SparseColumn(f"{event}_ad", ads, table="ad"),
                    SparseColumn(f"{event}_category", categories, table="category"),
                ),
                dense=(DenseColumn(f"{event}_seconds", log1p=True),),
                timestamp=f"{event}_time",
                max_length=config.max_length,
            )
            for event in EVENT_TYPES
        ),
        timestamp="time",
        domain=Domain("surface", SURFACES),
    )


class World:
    """What all rows share: latent vectors and coefficients."""

    def __init__(self, config: SyntheticConfig):
        rng = np.random.default_rng([config.seed, 0])
        # Unit variance of a product of two such vectors.
        scale = LATENT**-0.25
        self.user = (rng.standard_normal((config.num_users + 1, LATENT)) * scale).astype(np.float32)
        self.ad = (rng.standard_normal((config.num_ads + 1, LATENT)) * scale).astype(np.float32)
        self.category = rng.integers(1, config.num_categories + 1, config.num_ads + 1)
        self.dense = rng.standard_normal((NUM_DENSE, len(TASKS))) * 0.25
        self.bias = np.array([[-1.5, -3.0], [-2.0, -3.5], [-0.5, -2.0]])
        self.user_scale = np.array([0.7, 0.4])


def _zipf(rng: np.random.Generator, exponent: float, size: int, count: int) -> np.ndarray:
    """(count,) int64 in [1, size], P(k) about k^-exponent, by the inverse of the continuous distribution."""
    power = 1.0 - exponent
    uniform = rng.random(count)
    values = (1.0 + uniform * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(values.astype(np.int64), size)


def block(config: SyntheticConfig, world: World, number: int, rows: int) -> tuple[pa.Table, np.ndarray]:
    """Block `number` of the stream: its rows and their true probabilities (rows, tasks), of its own random stream."""
    rng = np.random.default_rng([config.seed, 1, number])
    user = _zipf(rng, config.zipf, config.num_users, rows)
    ad = _zipf(rng, config.zipf, config.num_ads, rows)
    surface = rng.choice(len(SURFACES), rows, p=(0.6, 0.3, 0.1))
    time = START + number * DAY // 24 + np.sort(rng.integers(0, DAY // 24, rows))
    x = rng.standard_normal((rows, NUM_DENSE), dtype=np.float32)
    logits = world.bias[surface] + x @ world.dense
    z_ad = world.ad[ad]
    logits += np.einsum("bk,bk->b", world.user[user], z_ad)[:, None] * world.user_scale
    columns: dict[str, pa.Array] = {}
    for event, (share, scales) in EVENT_TYPES.items():
        mean = np.log(config.mean_length * share) - config.length_sigma**2 / 2
        lengths = np.minimum(rng.lognormal(mean, config.length_sigma, rows).astype(np.int64), config.max_length)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        total = int(offsets[-1])
        event_ad = _zipf(rng, config.zipf, config.num_ads, total)
        # Seconds from an event to the next one; the last one's to the request. Two hours on average.
        gaps = 1 + rng.exponential(2 * 3600.0, total).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(gaps)])
        age = np.repeat(sums[offsets[1:]], lengths) - sums[:-1]
        weight = np.exp(age * np.float32(-1 / DAY), dtype=np.float32)
        interest = _sums(weight[:, None] * world.ad[event_ad], offsets)
        norm = np.sqrt(_sums((weight**2)[:, None], offsets))
        interest = np.einsum("bk,bk->b", interest / np.maximum(norm, 1e-30), z_ad)
        logits += interest[:, None] * np.array(scales)
        pointers = pa.array(offsets, pa.int32())
        for name, values in (
            ("ad", event_ad),
            ("category", world.category[event_ad]),
            ("seconds", rng.integers(0, 60, total).astype(np.float32)),
            ("time", np.repeat(time, lengths) - age),
        ):
            columns[f"{event}_{name}"] = pa.ListArray.from_arrays(pointers, pa.array(values))
    probabilities = 1.0 / (1.0 + np.exp(-logits))
    labels = rng.random(probabilities.shape) < probabilities
    num_interests = rng.integers(0, 4, rows)
    interests = rng.integers(1, config.num_categories + 1, num_interests.sum())
    columns |= {task: pa.array(labels[:, n].astype(np.int8)) for n, task in enumerate(TASKS)}
    columns |= {f"x{n}": pa.array(x[:, n]) for n in range(NUM_DENSE)}
    columns |= {
        "user": pa.array(user),
        "ad": pa.array(ad),
        "category": pa.array(world.category[ad]),
        "interests": pa.ListArray.from_arrays(
            pa.array(np.concatenate([[0], np.cumsum(num_interests)]), pa.int32()), pa.array(interests)
        ),
        "time": pa.array(time),
        "surface": pa.DictionaryArray.from_arrays(pa.array(surface.astype(np.int8)), pa.array(SURFACES)).cast("string"),
    }
    return pa.table({name: columns[name] for name in schema(config).columns}), probabilities


def _sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(B, K) sums of the rows [offsets[b], offsets[b + 1]) of `values` (T, K); 0 for an empty range."""
    out = np.zeros((len(offsets) - 1, values.shape[1]), np.float64)
    full = np.flatnonzero(np.diff(offsets))
    if len(full):
        # reduceat gives the element itself for an empty range, so only full ones are asked for.
        out[full] = np.add.reduceat(values, offsets[full], axis=0)
    return out


class Bayes:
    """Expected NE and AUC of the true probabilities, streaming; the AUC from a histogram of them."""

    def __init__(self):
        self.rows, self.entropy = 0, np.zeros(len(TASKS))
        self.positive = np.zeros((len(TASKS), _BINS))
        self.negative = np.zeros((len(TASKS), _BINS))

    def add(self, p: np.ndarray) -> None:
        self.rows += len(p)
        self.entropy += _entropy(p).sum(axis=0)
        for n in range(len(TASKS)):
            bins = np.minimum((p[:, n] * _BINS).astype(np.int64), _BINS - 1)
            self.positive[n] += np.bincount(bins, p[:, n], _BINS)
            self.negative[n] += np.bincount(bins, 1.0 - p[:, n], _BINS)

    def result(self) -> dict[str, dict[str, float]]:
        """Task -> base_rate, ne, auc."""
        out = {}
        for n, task in enumerate(TASKS):
            positive, negative = self.positive[n], self.negative[n]
            rate = positive.sum() / self.rows
            below = np.cumsum(negative) - negative / 2
            auc = (positive * below).sum() / (positive.sum() * negative.sum())
            ne = self.entropy[n] / self.rows / _entropy(rate)
            out[task] = {"base_rate": float(rate), "ne": float(ne), "auc": float(auc)}
        return out


def _entropy(p):
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return -p * np.log(p) - (1 - p) * np.log1p(-p)


def convert(
    out: str | Path, config: SyntheticConfig = SyntheticConfig(), *, overwrite: bool = False, block_rows: int = 4096
) -> Schema:
    """Generates the data set folder `out`, in memory for a few blocks of rows.

    Raises:
        DataError: see `FolderWriter`.
    """
    world, number = World(config), 0
    info: dict = {"config": asdict(config), "bayes": {}}
    with FolderWriter(out, overwrite=overwrite, row_group_rows=block_rows) as writer:
        for split, rows in (("train", config.rows), ("valid", config.eval_rows), ("test", config.eval_rows)):
            bayes = Bayes()
            for start in range(0, rows, block_rows):
                table, probabilities = block(config, world, number, min(block_rows, rows - start))
                writer.write(split, table)
                bayes.add(probabilities)
                number += 1
            info["bayes"][split] = {"rows": rows, **bayes.result()}
        (writer.folder / INFO_FILE).write_text(json.dumps(info, indent=1) + "\n")
        writer.finish(schema(config))
    return schema(config)
