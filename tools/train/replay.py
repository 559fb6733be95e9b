"""A step with a non-finite loss, kept on disk, and `faceter train --replay`: which module was the first to go wrong?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from faceter.data.batch import Batch, EventSequence
from faceter.data.schema import Schema
from faceter.model.config import ConfigError, GemConfig
from faceter.model.gem import Gem
from faceter.model.loss import multitask_bce
from faceter.tools.train.checkpoint import quiet
from faceter.tools.train.config import GemOptions, merge, plain

FORMAT = 1


def save(path: Path, batch: Batch, config: GemConfig, facts: dict) -> None:
    """Writes the file that `replay` reads.

    Args:
        batch: of the process whose loss is not finite.
        config: of the model.
        facts: plain values and tensors: step, tasks, precision, weights (folder beside the file), random (state of the
            random number generators before the forward pass).
    """
    tree = {
        "format": FORMAT,
        "schema": config.schema.to_yaml(),
        "gem": {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(GemOptions)},
        "batch": _plain_batch(batch.to("cpu")),
        **facts,
    }
    partial = path.with_name(f".{path.name}.partial")
    torch.save(tree, partial)
    partial.rename(path)


def replay(path: Path) -> str:
    """Runs the kept batch through the kept weights in one process on the CPU.

    Returns:
        what was found, for a person.

    Raises:
        ConfigError: the file is not there, or is none of these.
    """
    try:
        tree = torch.load(path, weights_only=True)
        if tree["format"] != FORMAT:
            raise ConfigError(f"{path} has format {tree['format']}, this version reads {FORMAT}")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} was not written by a run that met a non-finite loss: {error!r}") from None
    schema = _schema(tree["schema"])
    options = merge(GemOptions(), tree["gem"], str(path))
    gem = Gem(GemConfig(schema=schema, **{f.name: getattr(options, f.name) for f in dataclasses.fields(GemOptions)}))
    with quiet():
        dcp.load({"model": gem.state_dict()}, checkpoint_id=path.parent / tree["weights"], no_dist=True)
    batch = _batch(tree["batch"])
    torch.set_rng_state(tree["random"]["cpu"])
    found = first_non_finite(gem, batch, tree["precision"])
    lines = [f"step {tree['step']}, batch of {batch.batch_size} rows, task {', '.join(tree['tasks'])}"]
    bad = [name for name, p in gem.named_parameters() if not torch.isfinite(p).all()]
    if bad:
        lines.append(f"parameters that are not finite: {', '.join(bad[:10])}" + (" ..." if len(bad) > 10 else ""))
    return "\n".join((*lines, found))


def first_non_finite(gem: Gem, batch: Batch, precision: str = "fp32") -> str:
    """Runs the batch forward and says which module is the first with a non-finite output."""
    found: list[str] = []
    handles = []

    def watch(name: str, module: nn.Module):
        def hook(_, inputs, output):
            if not found and not _finite(output):
                source = "finite" if _finite(inputs) else "not finite either"
                found.append(
                    f"first non-finite output: module {name} ({type(module).__name__}); its inputs are {source}"
                )

        return hook

    for name, module in gem.named_modules():
        handles.append(module.register_forward_hook(watch(name or "gem", module)))
    try:
        gem.train()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits_BT = gem(batch).logits
        loss = multitask_bce(logits_BT, batch.labels, batch.weights)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if torch.isfinite(loss.per_task).all():
        return "all outputs and the loss are finite here: it does not happen again on this machine"
    return "all outputs are finite, the loss is not: look at the batch's labels and weights"


def _finite(value) -> bool:
    """Whether all floating-point tensors in a module's inputs or outputs are finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, (KeyedTensor, JaggedTensor)):
        return _finite(value.values())
    if isinstance(value, Batch):
        return _finite([value.dense, value.labels, value.weights, *(e.dense for e in value.events.values())])
    if isinstance(value, dict):
        return all(_finite(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return all(_finite(v) for v in value)
    return True


def _plain_batch(batch: Batch) -> dict:
    tree = {f.name: getattr(batch, f.name) for f in dataclasses.fields(Batch)}
    for name in ("sparse", "sequence_ids"):
        ids = tree[name]
        tree[name] = {"keys": ids.keys(), "values": ids.values(), "lengths": ids.lengths(), "stride": ids.stride()}
    tree["events"] = {name: dict(vars(events)) for name, events in batch.events.items()}
    return tree


def _batch(tree: dict) -> Batch:
    events = {name: EventSequence(**fields) for name, fields in tree["events"].items()}
    ids = {name: KeyedJaggedTensor(**tree[name]) for name in ("sparse", "sequence_ids")}
    return Batch(**{**tree, **ids, "events": events})


def _schema(text: str) -> Schema:
    import yaml

    return Schema.from_dict(yaml.safe_load(text))
