"""`faceter train`: trains the GEM model on a data set folder, in one process or many."""
