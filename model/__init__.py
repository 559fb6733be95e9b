"""The GEM-like model in plain PyTorch and torchrec: no kernel, no pass, no Triton. The oracle of the whole system."""
