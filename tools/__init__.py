"""What a person runs: one folder for each command, with ``main(argv) -> int`` in its ``main.py``."""
