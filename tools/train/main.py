"""Trains the GEM model on MovieLens-100K or an own data set, in one process or many.

    faceter train                                       MovieLens-100K with the tuned defaults
    faceter train --data PATH --model h200              an own data set folder
    torchrun --nproc-per-node 8 -m faceter.tools.train.main --data PATH --model h200
    faceter train --replay runs/x/nonfinite-step-7.pt   a step that went wrong, again

Exit codes: 0 done, or stopped by SIGTERM or SIGINT with a checkpoint saved; 2 wrong usage, configuration or data (one
line on standard error); 3 a non-finite loss (the batch and the weights are kept for --replay).
"""

from __future__ import annotations

import sys

from faceter.data.errors import DataError
from faceter.model.config import ConfigError
from faceter.tools.train.config import parse

EXIT_USAGE = 2
EXIT_NON_FINITE = 3


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    try:
        config, files = parse(sys.argv[1:] if argv is None else argv)
        # torchrec takes seconds to import: not before the command line is known to be good.
        if files.replay is not None:
            from faceter.tools.train.replay import replay

            print(replay(files.replay))
            return 0
        from faceter.tools.train import loop
    except (ConfigError, DataError) as error:
        return _fail(error, EXIT_USAGE)
    try:
        loop.run(config)
    except (ConfigError, DataError) as error:
        return _fail(error, EXIT_USAGE)
    except loop.NonFiniteLoss as error:
        return _fail(error, EXIT_NON_FINITE)
    return 0


def _fail(error: Exception, code: int) -> int:
    print(f"faceter train: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    from faceter.tools.launch import run

    run(main)
