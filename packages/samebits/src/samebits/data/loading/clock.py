"""Training speed (samples/s) and the share of time spent waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samebits.data.loading.loader import Loader, starvation
from samebits.loggers import Logger

SHORT_S = 1.0  # shorter epochs are too short to measure waiting
Speeds = Callable[[float], dict[str, float]]  # samples/s -> more speeds to log, {perf/name: value}


class SpeedMeter:
    """Measure training speed and the share of time spent waiting for data, without pauses (evaluations, saves)."""

    def __init__(self, train: Loader, logger: Logger, speeds: Speeds) -> None:
        self.train, self.logger, self.speeds = train, logger, speeds
        self.pause_s = self.said = 0.0
        self.log_mark = self.epoch_mark = self._now()

    def _now(self) -> tuple[float, float]:
        return time.perf_counter() - self.pause_s, self.train.wait_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of this block, for example an evaluation or a save."""
        began = time.perf_counter()
        yield
        self.pause_s += time.perf_counter() - began

    def read(self, samples: int) -> dict[str, float]:
        """Return samples/s and the share of time spent waiting for data since the last call and, if they are known,
        tokens/s, TFLOP/s and the share of the devices' peak (MFU). samples: number of samples trained since the last
        call."""
        now = self._now()
        seconds, waited = (max(b - a, 1e-9) for a, b in zip(self.log_mark, now))
        self.log_mark = now
        speeds = {"perf/samples_per_s": samples / seconds, **self.speeds(samples / seconds)}
        return {**speeds, "perf/data_wait_share": waited / seconds}

    def end_epoch(self, step: int) -> None:
        """Warn if the loop waited too long for data in this epoch, with the config key to change. Repeat the warning
        only when the share has doubled."""
        now = self._now()
        seconds, waited = (b - a for a, b in zip(self.epoch_mark, now))
        self.epoch_mark = now
        verdict = starvation(waited, seconds, self.train.why, self.said)
        if verdict and seconds > SHORT_S:
            self.said = waited / seconds
            self.logger.warn(f"step {step}: {verdict}")
