"""What a rating of MovieLens-100K may know of the past, and the statistics made of it.

- Of its own user, ratings with a smaller timestamp (many ratings share a second: those are not past) that lie before
  the row's block of 10. Blocks are counted from the user's last rating, so that the last one is his test part, the one
  before it his validation part: no label of a held-out part feeds another row of it, and a training row lies as far
  from what it knows as a held-out one.
- Of other users, ratings of the training part with a smaller timestamp.
"""

from __future__ import annotations

import numpy as np

from faceter.data.convert.history import past
from faceter.data.convert.ml100k_ratings import HELD_OUT, Ratings

LIKED = 4
USUAL_YEAR = 1990
FIRST_TIME = 874_724_710


def history_end(r: Ratings) -> tuple[np.ndarray, np.ndarray]:
    """(start, end), each (N,) int64: row n knows of its own user the rows [start[n], end[n])."""
    start, end = past(r.user, r.time)
    stop = np.searchsorted(r.user, r.user, side="right")
    block_start = stop - HELD_OUT * ((stop - 1 - np.arange(len(stop))) // HELD_OUT + 1)
    return start, np.maximum(np.minimum(end, block_start), start)


def _item_past(r: Ratings, values: np.ndarray) -> np.ndarray:
    """Sums (N, K) of `values` (N, K) over training rows of the same item with a smaller timestamp."""
    train = np.flatnonzero(r.split == 0)
    order = train[np.lexsort((r.time[train], r.item[train]))]
    scale = r.time.max() + 1
    key = r.item[order] * scale + r.time[order]
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values[order], axis=0)])
    first = np.searchsorted(key, r.item * scale, side="left")
    return total[np.searchsorted(key, r.item * scale + r.time, side="left")] - total[first]


def features(r: Ratings) -> dict[str, np.ndarray]:
    """The dense columns, each (N,) float64, before the schema's log1p and normalisation."""
    start, end = history_end(r)
    liked = (r.rating >= LIKED).astype(np.float64)
    rating = r.rating.astype(np.float64)
    count = (end - start).astype(np.float64)
    # Fixed priors (a rating is 3.5 on average, 55 % are liked): a mean over the data would know the future.
    prior_mean, prior_like, prior_var = 3.5, 0.55, 1.1

    def total(values, first):
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return sums[end] - sums[first]

    user_sum, user_likes = total(rating, start), total(liked, start)
    user_mean = (user_sum + 5 * prior_mean) / (count + 5)
    user_like = (user_likes + 5 * prior_like) / (count + 5)
    raw_mean = user_sum / np.maximum(count, 1)
    deviation = np.maximum(total(rating**2, start) - count * raw_mean**2, 0.0)
    out = {
        "user_count": count,
        "user_mean": user_mean,
        "user_like_rate": user_like,
        "user_std": np.sqrt((deviation + 5 * prior_var) / (count + 5)),
    }
    for k in (10, 30):
        first = np.maximum(end - k, start)
        n = end - first
        out[f"user_like_rate_{k}"] = (total(liked, first) + 3 * user_like) / (n + 3)
        out[f"user_mean_{k}"] = (total(rating, first) + 3 * user_mean) / (n + 3)
    has = end > start
    last = np.where(has, r.time[np.maximum(end - 1, 0)], r.time)
    out["user_gap"] = (r.time - last).astype(np.float64)
    out["user_span"] = np.where(has, r.time - r.time[start], 0).astype(np.float64)
    hour = np.searchsorted(
        r.user * (r.time.max() + 1) + r.time, r.user * (r.time.max() + 1) + r.time - 3600, side="right"
    )
    out["user_last_hour"] = np.maximum(end - np.maximum(hour, start), 0).astype(np.float64)

    ones = np.ones_like(rating)
    item_count, item_sum, item_likes, item_residual = _item_past(
        r, np.stack([ones, rating, liked, rating - user_mean], axis=1)
    ).T
    item_mean = (item_sum + 5 * prior_mean) / (item_count + 5)
    out["item_count"] = item_count
    out["item_like_rate"] = (item_likes + 5 * prior_like) / (item_count + 5)
    out["item_mean"] = item_mean
    out["item_residual"] = item_residual / (item_count + 5)
    year = np.where(r.year[r.item] > 0, r.year[r.item], USUAL_YEAR).astype(np.float64)
    out["release_year"] = year
    out["days"] = (r.time - FIRST_TIME) / 86_400
    out["age"] = r.age[r.user].astype(np.float64)

    # What this user thought of items like this one: his residuals, weighted by likeness.
    direction = r.genres / np.maximum(np.linalg.norm(r.genres, axis=1, keepdims=True), 1.0)
    names = ("genre_affinity", "genre_count", "year_affinity", "year_count")
    names += ("popularity_affinity", "quality_affinity", "user_residual")
    out |= {name: np.zeros(len(rating)) for name in names}
    popularity = np.log1p(item_count)
    for first in np.flatnonzero(np.r_[True, r.user[1:] != r.user[:-1]]):
        rows = slice(first, np.searchsorted(r.user, r.user[first], side="right"))
        n = rows.stop - rows.start
        known = np.arange(n) < (end[rows] - start[rows])[:, None]
        residual = rating[rows] - user_mean[rows][:, None]

        def affinity(weight, known=known, residual=residual):
            weight = weight * known
            return (weight * residual).sum(1) / (weight.sum(1) + 2), weight.sum(1)

        def closeness(values, width, rows=rows):
            return np.exp(-np.abs(values[rows][None, :] - values[rows][:, None]) / width)

        likeness = direction[r.item[rows]] @ direction[r.item[rows]].T
        out["genre_affinity"][rows], out["genre_count"][rows] = affinity(likeness)
        out["year_affinity"][rows], out["year_count"][rows] = affinity(closeness(year, 5.0))
        out["popularity_affinity"][rows], _ = affinity(closeness(popularity, 0.5))
        out["quality_affinity"][rows], _ = affinity(closeness(item_mean, 0.15))
        over = (rating[rows] - item_mean[rows]) * known
        out["user_residual"][rows] = over.sum(1) / (known.sum(1) + 5)
    return out
