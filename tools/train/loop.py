"""The training loop.

A run is: open the data, build the model, go on from the newest checkpoint if there is one, then step through epochs,
evaluating and saving on the way, and at the end evaluate the best weights on the test part.

What happens next is decided from `Progress` alone, which is in every checkpoint, at step boundaries. So a run that was
killed anywhere and started again does what the uninterrupted run does, bit for bit on a CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from faceter.data.batch import Batch
from faceter.data.errors import DataError
from faceter.data.schema import Schema
from faceter.model.loss import multitask_bce
from faceter.tools.train import parallel, replay
from faceter.tools.train.checkpoint import CheckpointStore
from faceter.tools.train.config import TrainConfig, plain, to_yaml
from faceter.tools.train.dataset import locate
from faceter.tools.train.evaluate import Interrupted, Report, evaluate, open_reader
from faceter.tools.train.metrics import Predictions, from_plain
from faceter.tools.train.mfu import mfu, peak_flops
from faceter.tools.train.model_parallel import (
    build,
    dense_parameters,
    distribute,
    inner,
    set_embedding_lr,
    table_shards,
)
from faceter.tools.train.optimizers import (
    WeightAverage,
    adamw,
    adamw_state,
    decay_tables,
    decayed,
    learning_rate_factor,
)
from faceter.tools.train.parallel import Processes
from faceter.tools.train.progress import Display, number
from faceter.tools.train.running import RunningFigures
from faceter.tools.train.stopping import StopSignals
from faceter.tools.train.summaries import Record, write_whole


class NonFiniteLoss(ArithmeticError):
    """The run met a loss that is NaN or infinite; the message says where and what was kept."""


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: optimizer steps taken.
        epoch: epochs completed.
        rows: rows trained on, in all processes.
        seconds: spent in steps.
        evaluated_step: step of the newest evaluation.
        evaluated_epoch: `epoch` at the newest evaluation.
        best_step: step of the best evaluation, or None.
        best_value: its metric.
        best_report: all its metrics, as plain values.
        stale: evaluations since then.
    """

    step: int = 0
    epoch: int = 0
    rows: int = 0
    seconds: float = 0.0
    evaluated_step: int = 0
    evaluated_epoch: int = 0
    best_step: int | None = None
    best_value: float | None = None
    best_report: dict | None = None
    stale: int = 0


def run(config: TrainConfig) -> Report | None:
    """Trains as configured.

    Returns:
        the final metrics in the main process; None in the others, and if a signal stopped the run (it can go on).

    Raises:
        ConfigError, DataError: what was asked for can't be done; the message is for the person who asked.
        NonFiniteLoss: see there.
    """
    with parallel.start(config.device) as processes, Display(processes.is_main) as display, StopSignals() as signals:
        return Trainer(config, processes, display, signals).run()


class Trainer:
    """One run, in one of its processes."""

    def __init__(self, config: TrainConfig, processes: Processes, display: Display, signals: StopSignals):
        self.config, self.processes, self.display, self.signals = config, processes, display, signals
        self.data = locate(config, processes, display)
        self.schema = Schema.load(self.data)
        self.model_config = config.gem_config(self.schema)
        self.tasks = [label.name for label in self.schema.labels]
        self.reader = self._reader("train")
        # Opened and closed here so that a fault in their files is found before the first step, not after the last.
        self.parts = [part for part in ("valid", "test") if (self.data / part).is_dir()]
        for part in self.parts:
            self._reader(part).close()
        self.max_steps = config.schedule.epochs * self.reader.steps_per_epoch
        self.max_steps = min(self.max_steps, config.schedule.max_steps or self.max_steps)

        self.bf16 = config.precision == "bf16" or (
            config.precision == "auto" and processes.device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        gem = build(self.model_config, config.seed)
        self.model = distribute(gem, processes, config.optimizer, config.reader.batch_size, config.seed)
        self.dense = dense_parameters(self.model)
        self.optimizer = adamw(self.dense, {f"core.{n}" for n in decayed(inner(self.model).core)}, config.optimizer)
        self.tables = {f"{name}.{first}": shard for (name, first), shard in table_shards(self.model).items()}
        averaged = {**self.dense, **(self.tables if config.optimizer.ema_tables else {})}
        self.average = WeightAverage(averaged, config.optimizer.ema_decay) if config.optimizer.ema_decay else None
        self.task_weights = torch.tensor([label.weight for label in self.schema.labels], device=processes.device)
        self.peak = peak_flops(processes.device)

        self.progress = Progress()
        self.figures = RunningFigures(len(self.tasks), config.logging.window_rows)
        self.store = CheckpointStore(
            config.run_folder / "checkpoints",
            processes,
            self._identity(),
            config.checkpoint.keep,
            config.checkpoint.background,
            display.warning,
        )
        self.record: Record | None = None

    # ---------------------------------------------------------------- the loop

    def run(self) -> Report | None:
        self._resume()
        try:
            batches = self.reader.epoch()
            while not self._over():
                if self._evaluation_is_due():
                    self._evaluate()
                    self._save()
                    continue
                started = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    self.progress.epoch += 1
                    batches = self.reader.epoch()
                    continue
                self._open_record()
                stop = self._step(batch, started)
                self._log()
                if stop:
                    return self._stop()
                self._save_if_due()
            return self._finish()
        except Interrupted:
            return self._stop()
        finally:
            self.reader.close()
            if self.record is not None:
                self.record.close()

    def _over(self) -> bool:
        """Whether training is done and its last weights are evaluated."""
        patience = self.config.evaluation.patience
        if patience and self.progress.stale >= patience:
            return True
        return self._trained() and not self._evaluation_is_due()

    def _trained(self) -> bool:
        return self.progress.step >= self.max_steps

    def _evaluation_is_due(self) -> bool:
        progress, every = self.progress, self.config.evaluation.evaluate_every
        if "valid" not in self.parts or progress.evaluated_step == progress.step:
            return False
        if self._trained():
            return True
        return progress.step % every == 0 if every else progress.epoch > progress.evaluated_epoch

    def _step(self, host: Batch, started: float) -> bool:
        """Forward, backward, update (of the tables: inside the backward pass). Whether a signal has come meanwhile."""
        options, step = self.config.optimizer, self.progress.step
        factor = learning_rate_factor(self.config.schedule, step, self.max_steps)
        set_embedding_lr(self.model, options.embedding_lr * factor)
        for group in self.optimizer.param_groups:
            group["lr"] = options.dense_lr * factor
        flops = float(inner(self.model).flops(host).training) if self.peak else 0.0

        random = self._random_state()
        batch = host.to(self.processes.device, non_blocking=True)
        with self._autocast():
            output = self.model(batch)
        loss = multitask_bce(output.logits, batch.labels, batch.weights, self.task_weights)
        per_task = loss.per_task.detach().cpu()

        # One exchange per step. It waits for the forward pass: a non-finite loss must not reach the weights.
        weight = float(host.weights.sum())
        bad, stop, total_weight, rows = self.processes.reduce(
            [
                float(not torch.isfinite(per_task).all()),
                float(self.signals.received is not None),
                weight,
                float(host.batch_size),
            ]
        )
        if bad:
            self._keep_for_replay(host, per_task, random)
        # DDP and torchrec average gradients over processes; this makes it the mean over the rows of all of them.
        share = weight * self.processes.world_size / total_weight if total_weight > 0 else 0.0
        total = loss.total if share == 1.0 else loss.total * share
        total.backward()
        if options.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.dense.values(), options.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if options.embedding_weight_decay:
            decay_tables(list(self.tables.values()), options.embedding_lr * factor, options.embedding_weight_decay)
        if self.average:
            self.average.update(step)

        self.progress.step += 1
        self.progress.rows += int(rows)
        seconds = time.perf_counter() - started
        self.progress.seconds += seconds
        logits = output.logits.detach().float().cpu()
        predictions = Predictions(logits, host.labels, host.weights, host.domains)
        self.figures.add(predictions, float(loss.total.detach()), flops, seconds)
        return bool(stop)

    # ---------------------------------------------------------------- evaluation

    def _evaluate(self) -> None:
        """Evaluates the validation part and notes whether these weights are the best so far."""
        progress, options = self.progress, self.config.evaluation
        report = self.processes.share(self._report("valid"))
        if self.record:
            self.record.evaluation(progress.step, "valid", report)
        self.display.message(
            f"step {progress.step}: validation "
            + ", ".join(f"{t} NE {number(m['all'].ne)} AUC {number(m['all'].auc)}" for t, m in report.items())
        )
        value = getattr(report[self.tasks[0]]["all"], options.metric)
        progress.evaluated_step, progress.evaluated_epoch = progress.step, progress.epoch
        sign = 1 if options.metric == "auc" else -1
        # Without a value (labels all alike) the newest weights are as good as any.
        if value is None or progress.best_value is None or sign * value > sign * progress.best_value:
            progress.best_step, progress.best_value, progress.best_report = progress.step, value, plain(report)
            progress.stale = 0
        else:
            progress.stale += 1

    def _report(self, part: str) -> Report | None:
        """Metrics of the present weights (their average, if one is kept) on a part of the data."""
        weights = self.average.in_place() if self.average else contextlib.nullcontext()
        with weights, contextlib.closing(self._reader(part)) as reader:
            return evaluate(self.model, reader, self.processes, self._autocast, lambda: bool(self.signals.received))

    def _finish(self) -> Report | None:
        """Evaluates the best weights on validation and test part, shows and writes the result."""
        progress = self.progress
        if "valid" not in self.parts:
            self._save()
        self.store.finish()
        best = progress.best_step if progress.best_step is not None else progress.step
        if best != progress.step:
            self.store.load(self.store.path(best), self._tensors(weights_only=True))
        reports = {}
        if progress.best_report is not None:
            reports["valid"] = from_plain(progress.best_report)
        if "test" in self.parts:
            try:
                reports["test"] = self._report("test")
            except Interrupted:
                # The model has the best weights now, not the last ones, and those are saved already.
                return self._stop(save=False)
        if not self.processes.is_main:
            return None
        for part, report in reports.items():
            self.display.table(f"{self.schema.name}: {part} part, weights of step {best}", report)
        if self.record and "test" in reports:
            self.record.evaluation(best, "test", reports["test"])
        result = {
            "best_step": best,
            "steps": progress.step,
            "epochs": progress.epoch,
            "rows": progress.rows,
            "seed": self.config.seed,
            "world_size": self.processes.world_size,
            **{part: plain(report) for part, report in reports.items()},
            "time": {
                "seconds": progress.seconds,
                "qps": progress.rows / progress.seconds if progress.seconds else None,
            },
        }
        bad = [[str(file), column, problem, n] for (file, column, problem), n in self.reader.bad_rows.items()]
        if bad:
            result["bad_rows"] = bad
            for file, column, problem, n in bad:
                self.display.warning(f"{n} rows left out: {problem} [file {file}, column {column}]")
        self.config.run_folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.config.run_folder / "metrics.json", json.dumps(result, indent=1) + "\n")
        self.display.message(f"{progress.rows:,} rows in {progress.seconds:.0f} s. Written to {self.config.run_folder}")
        return reports.get("test") or reports.get("valid")

    # ---------------------------------------------------------------- stopping and going on

    def _resume(self) -> None:
        """Goes on from the newest checkpoint, or empties the run folder."""
        if self.config.checkpoint.resume == "never":
            self._clear()
        path = self.store.newest()
        if path is None:
            # From here on: dropout, different in each process.
            torch.manual_seed(self.config.seed * self.processes.world_size + self.processes.rank + 1)
            return
        host = self.store.load(path, self._tensors())
        self.progress = Progress(**host["progress"])
        self.reader.load_state_dict(host["reader"])
        self.figures.load_state_dict(host["figures"])
        torch.set_rng_state(host["random"]["cpu"])
        if self.processes.device.type == "cuda":
            torch.cuda.set_rng_state(host["random"]["cuda"])
        done = ", which is the last: evaluated again" if self._over() else ""
        self.display.message(f"going on from {path} (step {self.progress.step}{done})")
        if not done:
            self._open_record()

    def _save_if_due(self) -> None:
        every = self.config.checkpoint.checkpoint_every
        self.store.poll()
        # Where an evaluation is due, it comes first and saves.
        if every and self.progress.step % every == 0 and not self._evaluation_is_due():
            self._save()

    def _save(self) -> None:
        host = {
            "progress": dataclasses.asdict(self.progress),
            "reader": self.reader.state_dict(),
            "figures": self.figures.state_dict(),
            "random": self._random_state(),
        }
        self.store.save(self.progress.step, self._tensors(), host, self.progress.best_step)

    def _stop(self, save: bool = True) -> None:
        """A signal came: save and end."""
        if save:
            self._save()
        self.store.finish()
        self.display.end_steps()
        self.display.message(
            f"stopped by a signal after step {self.progress.step}, saved in {self.store.folder}; start again to go on"
        )

    def _tensors(self, weights_only: bool = False) -> dict:
        """All tensors of a checkpoint, or those that the model predicts with."""
        tensors = {"model": self.model.state_dict()}
        if self.average:
            tensors["average"] = self.average.averages
        if not weights_only:
            tensors["fused"] = self.model.fused_optimizer.state_dict()["state"]
            tensors["adamw"] = adamw_state(self.optimizer, self.dense)
        return tensors

    def _identity(self) -> dict:
        """What must be the same for a run to go on from a checkpoint."""
        reader = dataclasses.asdict(self.config.reader)
        del reader["workers"]
        return {
            "gem": plain(self.config.gem),
            "schema": plain(self.schema),
            "data": self.reader.state_dict()["data"],
            "seed": self.config.seed,
            "world_size": self.processes.world_size,
            "precision": "bf16" if self.bf16 else "fp32",
            "reader": reader,
            "optimizer": plain(self.config.optimizer),
        }

    def _clear(self) -> None:
        """Removes what an earlier run has written to the run folder, and nothing else."""
        self.store.clear()
        if self.processes.is_main:
            folder = self.config.run_folder
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
            for path in (folder / "log.jsonl", folder / "metrics.json", folder / "config.yaml"):
                path.unlink(missing_ok=True)
        self.processes.barrier()

    def _keep_for_replay(self, host: Batch, per_task: Tensor, random: dict) -> None:
        """Keeps the weights and the batch of the first process with a non-finite loss, then raises."""
        step, folder = self.progress.step + 1, self.config.run_folder
        bad = [n for n, x in zip(self.tasks, per_task.tolist(), strict=True) if not torch.isfinite(torch.tensor(x))]
        name = f"nonfinite-step-{step}"
        self.store.finish()
        self.store.write_to(folder / f"{name}-weights", step, self._tensors(weights_only=True), {})
        first = next(rank for rank, tasks in enumerate(self.processes.gather(bad)) if tasks)
        bad = self.processes.gather(bad)[first]
        path = folder / f"{name}.pt"
        if self.processes.rank == first:
            facts = {
                "step": step,
                "tasks": bad,
                "precision": "bf16" if self.bf16 else "fp32",
                "weights": f"{name}-weights",
                "random": random,
            }
            replay.save(path, host, self.model_config, facts)
        self.processes.barrier()
        raise NonFiniteLoss(
            f"the loss of task {', '.join(bad)} is not finite in step {step} (process {first}). Batch and weights are "
            f"kept: `faceter train --replay {path}` names the first module with a non-finite output"
        )

    # ---------------------------------------------------------------- small things

    def _reader(self, part: str):
        path = self.data / part
        if part == "train" and not path.is_dir():
            raise DataError("the data set has no train folder", file=self.data, remedy="Convert with `faceter data`")
        config = self.config
        return open_reader(path, self.schema, config.reader, self.processes, config.seed, train=part == "train")

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=self.bf16)

    def _random_state(self) -> dict:
        state = {"cpu": torch.get_rng_state()}
        if self.processes.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def _open_record(self) -> None:
        """Makes the run folder's files, once there is something to write: a run that can't start leaves none."""
        if self.record is None and self.processes.is_main:
            folder = self.config.run_folder
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "config.yaml", to_yaml(self.config))
            self.record = Record(folder, self.progress.step)

    def _log(self) -> None:
        """Shows and records the figures of the last steps."""
        progress, every = self.progress, self.config.logging.log_every
        epoch = f"{min(progress.epoch + 1, self.config.schedule.epochs)}/{self.config.schedule.epochs}"
        if progress.step % every and not self._trained():
            self.display.advance(progress.step, self.max_steps)
            return
        figures = self.figures.take(self.processes)
        flops, seconds = figures.pop("flops"), figures.pop("seconds")
        figures["mfu"] = mfu(flops, seconds, self.peak, self.processes.world_size)
        left = (self.max_steps - progress.step) * progress.seconds / progress.step
        self.display.step(progress.step, self.max_steps, epoch, figures, left)
        if self.record:
            factor = learning_rate_factor(self.config.schedule, progress.step - 1, self.max_steps)
            self.record.training(progress.step, {"epoch": progress.epoch, "lr_factor": factor, **figures})
