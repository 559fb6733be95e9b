"""Signals that end a run in good order."""

from __future__ import annotations

import signal


class StopSignals:
    """Notes SIGTERM and SIGINT instead of dying of them; a second SIGINT interrupts at once.

    Attributes:
        received: name of the signal, or None.
    """

    def __init__(self):
        self.received: str | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.received = signal.Signals(number).name
