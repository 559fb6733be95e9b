"""Where the data are: the folder that was named, or MovieLens-100K, converted on first use."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from faceter.data.errors import DataError
from faceter.model.config import ConfigError
from faceter.tools.train.config import DEFAULT_MODEL, TrainConfig
from faceter.tools.train.parallel import Processes
from faceter.tools.train.progress import Display


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/faceter`, or `~/.cache/faceter`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faceter"


def locate(config: TrainConfig, processes: Processes, display: Display) -> Path:
    """The data set folder of a run; converts MovieLens-100K if it is asked for and not there yet.

    Raises:
        ConfigError: no folder was named for a model that brings no data.
        DataError: MovieLens-100K can't be found or converted.
    """
    if config.data is not None:
        return config.data
    if config.model != DEFAULT_MODEL:
        raise ConfigError(
            f"model {config.model!r} brings no data: name a data set folder with --data (`faceter data` makes one)"
        )
    from faceter.data.convert import ml100k

    # Another schema, another conversion.
    mark = zlib.crc32(ml100k.schema().to_yaml().encode())
    folder = cache_folder() / f"ml100k-{mark:08x}"
    error = None
    if processes.is_main and not (folder / "schema.yaml").is_file():
        display.message(f"converting MovieLens-100K (GroupLens, from the recbole package) to {folder}")
        try:
            ml100k.convert(folder, overwrite=True)
        except DataError as raised:
            error = raised
    error = processes.share(error)
    if error is not None:
        raise error
    return folder
