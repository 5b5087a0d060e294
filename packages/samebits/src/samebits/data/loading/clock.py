"""Training speed (samples/s) and the share of time spent waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from samebits.data.loading.loader import Loader, starvation
from samebits.loggers import Logger

SHORT_S = 1.0  # shorter epochs are too short to measure waiting
# (samples/s, {objective: samples/s through forward and backward}) -> more speeds to log, {perf/name: value}
Speeds = Callable[[float, Mapping[str, float]], dict[str, float]]


class SpeedMeter:
    """Measure training speed and the share of time spent waiting for data, without pauses (evaluations, saves).

    samples: number of samples that the run has trained before, because a resumed run measures only its own. passed:
    {objective: number of samples that have passed through forward and backward}, which the loop keeps up to date."""

    def __init__(self, train: Loader, logger: Logger, speeds: Speeds, samples: int, passed: Mapping[str, int]) -> None:
        self.train, self.logger, self.speeds = train, logger, speeds
        self.pause_s = self.said = 0.0
        self.samples, self.passed, self.passed_mark = samples, passed, dict(passed)
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
        tokens/s, TFLOP/s and the share of the devices' peak (MFU). samples: number of samples that the run has
        trained."""
        now = self._now()
        seconds, waited = (max(b - a, 1e-9) for a, b in zip(self.log_mark, now))
        rate = (samples - self.samples) / seconds
        passes = {name: (count - self.passed_mark.get(name, 0)) / seconds for name, count in self.passed.items()}
        self.log_mark, self.samples, self.passed_mark = now, samples, dict(self.passed)
        speeds = {"perf/samples_per_s": rate, **self.speeds(rate, passes)}
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
