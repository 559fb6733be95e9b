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
    "ml100k": TrainConfig(
        reader=ReaderOptions(batch_size=512),
        schedule=ScheduleOptions(epochs=6),
        evaluation=EvaluationOptions(patience=2),
        optimizer=OptimizerOptions(),
    ),
}


def training(model: str) -> TrainConfig:
    """The settings of a named model; the general ones for a model without its own."""
    return _TRAINING.get(model, TrainConfig())
