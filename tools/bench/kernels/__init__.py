"""The kernel library against its peers: forward, backward, TFLOP/s on actual lengths, each result checked."""
