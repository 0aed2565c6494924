"""How long rounds of batches take on a node: what the clock of virtual time is calibrated with."""

from __future__ import annotations

import collections
import contextlib
import statistics
import threading
import time
from collections.abc import Iterator

LATEST = 200


class Spent:
  """Seconds of the latest batches, by round."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._times: dict[int, collections.deque[float]] = collections.defaultdict(lambda: collections.deque(maxlen=LATEST))

  @contextlib.contextmanager
  def on(self, number: int) -> Iterator[None]:
    """Counts the time within it for a round."""
    begin = time.perf_counter()
    yield
    with self._lock:
      self._times[number].append(time.perf_counter() - begin)

  def medians(self) -> dict[int, float]:
    """Seconds of each round. Compilation is a batch among many."""
    with self._lock:
      found = {number: list(times) for number, times in self._times.items()}
    return {number: statistics.median(times) for number, times in found.items()}
