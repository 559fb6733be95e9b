"""``faceter doctor``: what is installed, whether it fits together, what is usable and how to mend the rest."""
