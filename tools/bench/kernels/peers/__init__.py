"""Who computes a workload: each peer is a function from a problem to a `Run`."""

from faceter.tools.bench.kernels import workloads as names
from faceter.tools.bench.kernels.peers import flex, ours, padded, varlen

# A peer that can't compute a problem raises; the message becomes the reason in its rows.
PEERS = {
    names.FACETER: ours.faceter,
    names.IN_ORDER: ours.tiles_in_order,
    names.VARLEN: varlen.varlen,
    names.SDPA_MASK: padded.sdpa_mask,
    names.SDPA_CUDNN: padded.sdpa_cudnn,
    names.EAGER: padded.eager,
    names.COMPILED: padded.compiled,
    names.FLEX: flex.flex,
}
