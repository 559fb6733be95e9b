"""Training settings that go with the model's named configurations (`faceter.model.presets`)."""

from __future__ import annotations

from faceter.tools.train.config import (
    EvaluationOptions,
    OptimizerOptions,
    ReaderOptions,
    ScheduleOptions,
    TrainConfig,
)

_TRAINING = {
    "tiny": TrainConfig(
        reader=ReaderOptions(batch_size=64, shuffle_rows=1024), schedule=ScheduleOptions(warmup_steps=10)
    ),
    # 100,000 rows hold little beside user and item factors, and those only if they are pulled to zero all the time, by
    # 6e-3 a step at the peak rate. Averages of all weights are worth as much as a smaller learning rate.
    "ml100k": TrainConfig(
        reader=ReaderOptions(batch_size=512),
        optimizer=OptimizerOptions(
            dense_lr=2e-3,
            weight_decay=0.01,
            embedding_lr=0.3,
            embedding_weight_decay=0.02,
            ema_decay=0.99,
            ema_tables=True,
        ),
        schedule=ScheduleOptions(epochs=6, warmup_steps=50, decay="cosine", final_factor=0.05),
        evaluation=EvaluationOptions(patience=2),
    ),
}


def training(model: str) -> TrainConfig:
    """The settings of a named model; the general ones for a model without its own."""
    return _TRAINING.get(model, TrainConfig())
