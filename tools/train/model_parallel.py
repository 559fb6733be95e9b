"""The model over the processes of a run: tables sharded by torchrec, the dense part replicated by DDP.

One process takes the same way as many: on a CPU, torchrec's DistributedModelParallel costs it half a millisecond or so
per step, its fused rowwise AdaGrad is bit for bit the same from run to run, and there is one code to trust. On a CPU
whole tables are dealt out (torchrec shards no EmbeddingBagCollection by rows there); on GPUs its planner chooses
between whole tables and rows. Not by columns: rowwise AdaGrad would then average a row's gradient over each part by
itself, and the numbers would depend on how many processes there are. Not data parallel: those tables have no fused
optimizer.

The initial weights don't depend on the number of processes: a table's row comes from the seed, the table's name and the
row's number.
"""

from __future__ import annotations

import logging
import warnings
import zlib

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import BaseEmbeddingConfig

from faceter.model.config import GemConfig
from faceter.model.gem import Gem, GemCore
from faceter.tools.train.config import OptimizerOptions
from faceter.tools.train.parallel import Processes

# Rows of a table that are drawn together.
CHUNK_ROWS = 1 << 16


def build(config: GemConfig, seed: int) -> Gem:
    """The model with its dense part on the CPU, drawn from the seed, and its tables not yet anywhere (meta)."""
    gem = Gem(config, device="meta")
    torch.manual_seed(seed)
    gem.core = GemCore(config)
    return gem


def table_configs(gem: Gem) -> dict[str, BaseEmbeddingConfig]:
    """Table name -> its torchrec configuration, of a model that isn't sharded yet."""
    embeddings = gem.embeddings
    bags = embeddings.ebc.embedding_bag_configs() if embeddings.ebc is not None else []
    rows = embeddings.ec.embedding_configs() if embeddings.ec is not None else []
    return {config.name: config for config in (*bags, *rows)}


def distribute(
    gem: Gem, processes: Processes, options: OptimizerOptions, batch_size: int, seed: int
) -> DistributedModelParallel:
    """Shards the tables, draws their weights, and replicates the dense part.

    Args:
        gem: from `build`, the same in all processes.
        batch_size: rows of a step and process, for the planner's estimates.
    """
    # The planner's remarks are about clusters and simulations.
    for name in ("torchrec", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return _distribute(gem, processes, options, batch_size, seed)


def _distribute(gem, processes, options, batch_size, seed) -> DistributedModelParallel:
    configs = table_configs(gem)
    fused = {
        "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": options.embedding_lr,
        "eps": options.embedding_eps,
    }
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused), EmbeddingCollectionSharder(fused_params=fused)]
    cuda = processes.device.type == "cuda"
    kinds = [ShardingType.TABLE_WISE] + ([ShardingType.ROW_WISE] if cuda and processes.world_size > 1 else [])
    memory = torch.cuda.get_device_properties(processes.device).total_memory if cuda else None
    planner = EmbeddingShardingPlanner(
        topology=Topology(processes.world_size, processes.device.type, hbm_cap=memory),
        batch_size=batch_size,
        constraints={n: ParameterConstraints(sharding_types=[k.value for k in kinds]) for n in configs},
    )
    model = DistributedModelParallel(
        gem,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=processes.device,
        plan=planner.collective_plan(gem, sharders, dist.group.WORLD),
        sharders=sharders,
        # No static graph: which parameters get a gradient may depend on the batch.
        data_parallel_wrapper=DefaultDataParallelWrapper(static_graph=False),
    )
    draw_tables(model, configs, seed)
    return model


@torch.no_grad()
def draw_tables(model: DistributedModelParallel, configs: dict[str, BaseEmbeddingConfig], seed: int) -> None:
    """Draws this process's part of all tables."""
    for (name, first), weight_RD in table_shards(model).items():
        table, rows = configs[name.split(".")[-2]], weight_RD.shape[0]
        for start in range(first // CHUNK_ROWS * CHUNK_ROWS, first + rows, CHUNK_ROWS):
            size = min(CHUNK_ROWS, table.num_embeddings - start)
            # The generators are the global ones, because that is what an init_fn draws from.
            torch.manual_seed(zlib.crc32(f"{seed} {table.name} {start}".encode()))
            chunk_RD = torch.empty(size, table.embedding_dim, device=weight_RD.device)
            table.init_fn(chunk_RD)
            begin, end = max(start, first), min(start + size, first + rows)
            weight_RD[begin - first : end - first].copy_(chunk_RD[begin - start : end - start])


def table_shards(model: DistributedModelParallel) -> dict[tuple[str, int], Tensor]:
    """This process's parts of the tables: (name of the weight, first row) -> (rows, D), the weights themselves."""
    return {
        (name, shard.metadata.shard_offsets[0]): shard.tensor
        for name, weight in model.state_dict().items()
        if isinstance(weight, ShardedTensor)
        for shard in weight.local_shards()
    }


def inner(model: DistributedModelParallel) -> Gem:
    """The model as its author knows it, inside the wrappers."""
    return model.module


def dense_parameters(model: DistributedModelParallel) -> dict[str, nn.Parameter]:
    """Name -> parameter of the replicated part."""
    return {f"core.{name}": p for name, p in inner(model).core.named_parameters()}


def set_embedding_lr(model: DistributedModelParallel, lr: float) -> None:
    """The learning rate of the tables in the next backward pass."""
    optimizer = model.fused_optimizer
    for group in optimizer.param_groups:
        group["lr"] = lr
    # This is where torchrec hands the rate to the kernels; there are no gradients to clear.
    optimizer.zero_grad()
