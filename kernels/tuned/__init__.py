"""Tables of kernel configs, one for each kind of GPU; `tools/tune` writes them."""
