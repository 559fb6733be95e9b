"""The generator: reproducible, valid for the reader's checks, and with the Bayes values it claims."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from faceter.data.convert import synthetic
from faceter.data.convert.synthetic import EVENT_TYPES, SyntheticConfig
from faceter.data.errors import DataError
from faceter.data.schema import Schema

SMALL = SyntheticConfig(rows=3000, eval_rows=700, num_users=500, num_ads=300, num_categories=20, mean_length=8.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("synthetic") / "out"
    assert synthetic.convert(out, SMALL, block_rows=512) == Schema.load(out)
    return out


def table(folder, split="train"):
    return pq.read_table(folder / split)


def test_same_seed_same_rows_other_seed_other_rows(folder, tmp_path):
    synthetic.convert(tmp_path / "same", SMALL, block_rows=512)
    assert table(tmp_path / "same").equals(table(folder))
    synthetic.convert(tmp_path / "other", SyntheticConfig(**(vars(SMALL) | {"seed": 1})), block_rows=512)
    assert not table(tmp_path / "other")["x0"].equals(table(folder)["x0"])


def test_rows_ids_and_times(folder):
    rows = table(folder)
    assert rows.num_rows == 3000
    assert table(folder, "valid").num_rows == table(folder, "test").num_rows == 700
    time = rows["time"].to_numpy()
    assert (np.diff(time) >= 0).all()
    assert table(folder, "valid")["time"].to_numpy().min() >= time.max()
    for event in EVENT_TYPES:
        events = rows[f"{event}_time"].to_pylist()
        assert all(ts == sorted(ts) and (not ts or ts[-1] < t) for ts, t in zip(events, time, strict=True))
        ads = rows[f"{event}_ad"].combine_chunks()
        assert ads.value_lengths().equals(rows[f"{event}_time"].combine_chunks().value_lengths())
        assert 1 <= ads.flatten().to_numpy().min() <= ads.flatten().to_numpy().max() <= SMALL.num_ads


def test_lengths_are_skewed_and_ids_are_zipf():
    config = SyntheticConfig(mean_length=40.0, max_length=500)
    rows, _ = synthetic.block(config, synthetic.World(config), 0, 20_000)
    lengths = rows["clicked_ad"].combine_chunks().value_lengths().to_numpy()
    # A log-normal of sigma 1: median = mean / e^0.5; lengths are cut to integers and at max_length.
    assert np.median(lengths) == pytest.approx(40 / np.e**0.5 - 0.5, rel=0.05)
    assert lengths.mean() == pytest.approx(40, rel=0.05)
    assert lengths.max() == 500
    counts = np.bincount(rows["clicked_ad"].combine_chunks().flatten().to_numpy())
    # P(k) is the integral of k^-1.1 over [k, k + 1).
    share = (1 - 2**-0.1) / (1 - 50_001**-0.1)
    assert counts[1] / counts.sum() == pytest.approx(share, rel=0.02)


def test_the_probabilities_are_the_documented_ones_and_labels_follow_them():
    config = SyntheticConfig(num_users=50, num_ads=40, mean_length=5.0)
    world = synthetic.World(config)
    rows, p = synthetic.block(config, world, 3, 20_000)
    for row, expected in zip(rows.slice(0, 50).to_pylist(), p, strict=False):
        z = world.ad[row["ad"]]
        logits = world.bias[synthetic.SURFACES.index(row["surface"])] + world.user_scale * (world.user[row["user"]] @ z)
        logits = logits + np.array([row[f"x{n}"] for n in range(synthetic.NUM_DENSE)]) @ world.dense
        for event, (_, scales) in EVENT_TYPES.items():
            weights = np.exp(-(row["time"] - np.array(row[f"{event}_time"], float)) / 86400)
            if len(weights):
                interest = weights @ world.ad[row[f"{event}_ad"]] @ z / np.sqrt((weights**2).sum())
                logits = logits + interest * np.array(scales)
        np.testing.assert_allclose(1 / (1 + np.exp(-logits)), expected, rtol=1e-4)
    for n, task in enumerate(synthetic.TASKS):
        y = rows[task].to_numpy()
        sigma = np.sqrt((p[:, n] * (1 - p[:, n])).sum())
        assert abs(y.sum() - p[:, n].sum()) < 5 * sigma
        # Calibrated among the likeliest too, not only on the whole.
        top = p[:, n] > np.quantile(p[:, n], 0.9)
        assert abs(y[top].sum() - p[top, n].sum()) < 5 * np.sqrt((p[top, n] * (1 - p[top, n])).sum())


def test_bayes_values_are_the_expected_ne_and_auc():
    config = SyntheticConfig(mean_length=5.0)
    p = np.concatenate([synthetic.block(config, synthetic.World(config), n, 200)[1] for n in range(3)])
    bayes = synthetic.Bayes()
    for piece in (p[:250], p[250:]):
        bayes.add(piece)
    for n, task in enumerate(synthetic.TASKS):
        q = p[:, n]
        rate = q.mean()
        entropy = -(q * np.log(q) + (1 - q) * np.log(1 - q)).mean()
        pairs = q[:, None] * (1 - q)[None, :]
        auc = (pairs * (np.sign(q[:, None] - q[None, :]) + 1) / 2).sum() / pairs.sum()
        result = bayes.result()[task]
        assert result["base_rate"] == pytest.approx(rate)
        assert result["ne"] == pytest.approx(entropy / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))
        assert result["auc"] == pytest.approx(auc, abs=1e-4)


def test_the_info_file_tells_the_rows_and_the_best_values(folder):
    info = json.loads((folder / synthetic.INFO_FILE).read_text())
    assert info["config"] == vars(SMALL)
    for split, rows in (("train", 3000), ("valid", 700), ("test", 700)):
        assert info["bayes"][split]["rows"] == rows
        for task in synthetic.TASKS:
            values = info["bayes"][split][task]
            seen = table(folder, split)[task].to_numpy().mean()
            assert seen == pytest.approx(values["base_rate"], abs=5 * np.sqrt(0.25 / rows))
            assert 0.6 < values["ne"] < 0.8
            assert 0.8 < values["auc"] < 0.9


@pytest.mark.parametrize(
    "field, value", [("rows", 0), ("num_ads", 0), ("max_length", 0), ("mean_length", 0.0), ("zipf", 1.0)]
)
def test_bad_sizes(field, value):
    with pytest.raises(DataError, match=field):
        SyntheticConfig(**{field: value})
