"""The processes of a run: one, or those that `torchrun` started.

One process is a group of one: the rest of the code knows no other case. Tensors travel by NCCL on GPUs; decisions (is
there a batch left, was there a signal) travel by gloo on CPUs, so that they do not wait for a GPU.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from faceter.model.config import ConfigError


@dataclass(frozen=True)
class Processes:
    """This process among the others.

    Attributes:
        rank: its number.
        world_size: how many there are.
        device: where its share of the model lives.
        control: gloo group of all of them.
    """

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes what only one may write."""
        return self.rank == 0

    def reduce(self, values: list[float], op: Literal["sum", "max", "min"] = "sum") -> list[float]:
        """Element by element over all processes, in float64."""
        if self.world_size == 1:
            return values
        values_N = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(values_N, getattr(dist.ReduceOp, op.upper()), group=self.control)
        return values_N.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.reduce([float(flag)], "max")[0])

    def share(self, value: object) -> object:
        """The main process's value, in all of them."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value: object) -> list:
        """The values of all processes, in each of them."""
        if self.world_size == 1:
            return [value]
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier(group=self.control)


@contextlib.contextmanager
def start(device: Literal["auto", "cpu", "cuda"] = "auto") -> Iterator[Processes]:
    """Joins the processes that torchrun's environment variables name; without those, a group of one.

    Raises:
        ConfigError: `cuda` was asked for and there is none, or fewer GPUs than processes on this host.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA GPU here (see `faceter doctor`)")
    cuda = device != "cpu" and torch.cuda.is_available()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if cuda and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local_rank} of this host has no GPU: there are {torch.cuda.device_count()}; "
            "start as many processes, or pass --device cpu"
        )
    here = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(here)
    dist.init_process_group(
        backend="nccl" if cuda else "gloo",
        # Without torchrun there is nobody to meet: no port is opened.
        store=None if "RANK" in os.environ else dist.HashStore(),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(minutes=30),
    )
    try:
        control = dist.new_group(backend="gloo") if cuda else dist.group.WORLD
        yield Processes(rank, world_size, here, control)
    finally:
        dist.destroy_process_group()
