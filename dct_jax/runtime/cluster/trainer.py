"""A trainer: nets that take batch after batch through the rounds of a plan, and ask servers for their part."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dct_jax.partition import Plan
from dct_jax.partition.graph import BATCH, LOSS
from dct_jax.partition.placement import TRAINER
from dct_jax.partition.programs import Program
from dct_jax.runtime.cluster import messages
from dct_jax.runtime.cluster.calls import Line
from dct_jax.runtime.cluster.keeper import Keeper
from dct_jax.runtime.cluster.messages import END, NEXT, RUN, WAIT, ArrayBytes, Head

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before something that failed is tried again, twice as long each time


class Trainer(Keeper):
  """Nets on threads of their own, which share the trainer's parameters, if it has any.

  Args:
    plan: of a group's program.
    leaves: parameters and optimizer state of the planned function.
    line_to: name of a node of the plan, or 'reader' -> a new line to it; every net has lines of its own.
    nets: numbers of the nets, which no other trainer has.
    note: told of what was lost and tried again.

  Attributes:
    losses: (number, loss) of batches that were done here and nobody has asked for yet.
    waited: seconds that nets have waited for answers, in all.
  """

  def __init__(self, plan: Plan, leaves: list[Any], line_to: Callable[[str], Line], nets: range,
               note: Callable[[str], None] = lambda text: None):
    super().__init__(plan, TRAINER, leaves, nets.start)
    self.losses: collections.deque[tuple[int, float]] = collections.deque()
    self.waited = 0.0
    self.failed: str | None = None
    self._route = Route(plan, plan.transform(apart=True))
    self._line_to, self._note = line_to, note
    self._stopping = threading.Event()
    self._threads = [threading.Thread(target=self._work, args=(n,), name=f'net {n}', daemon=True) for n in nets]

  def start(self) -> None:
    """Lets all nets work, until the reader has no more batches."""
    for thread in self._threads:
      thread.start()

  @property
  def working(self) -> int:
    """Nets that have not ended."""
    return sum(t.is_alive() for t in self._threads)

  def stop(self) -> None:
    """Lets nets end with the batch that they are at."""
    self._stopping.set()

  def _work(self, net: int) -> None:
    lines = {name: self._line_to(name) for name in ('reader', *self._route.servers)}
    try:
      done = 0
      while not self._stopping.is_set():
        found = self._patiently(net, lambda: self._next(lines['reader'], net, done))
        if found is None:
          return
        number, batch = found
        loss = self._patiently(net, lambda: self._take(lines, net, number, batch))
        if loss is None:
          return
        self.losses.append((number, float(loss)))
        done = number + 1
    except Exception as error:  # the driver tells it, and ends the run
      self.failed = f'net {net}: {type(error).__name__}: {error}'
    finally:
      for line in lines.values():
        line.close()

  def _patiently(self, net: int, attempt: Callable[[], Any]) -> Any:
    """Tries until it works: a node that is lost comes back. None if the trainer is to stop meanwhile."""
    pause = FIRST_PAUSE
    while True:
      try:
        return attempt()
      except ConnectionError as error:
        self._note(f'net {net} tries again in {pause:.1f} s: {error}')
        if self._stopping.wait(pause):
          return None
        pause = min(2 * pause, LONGEST_PAUSE)

  def _next(self, reader: Line, net: int, done: int) -> tuple[int, Mapping[int, Any]] | None:
    while True:
      reader.ask(messages.join(Head(NEXT, sender=net, batch=done)))
      head, body = self._answer(reader)
      if head.kind != WAIT:
        return None if head.kind == END else (head.batch, self._route.batch(body))

  def _take(self, lines: Mapping[str, Line], net: int, number: int, batch: Mapping[int, Any]) -> Any:
    """Takes a batch through all rounds; returns its loss."""
    stamp = time.time_ns()
    for line in lines.values():
      if line.waits:
        line.close()  # of an attempt that failed
    passage = self.begin(net, number, stamp, batch)
    sent, came = dict[tuple[str, int], bytes](), dict[tuple[str, int], list[Any]]()
    for when in self._route.rounds:
      for server in self._route.asked[when]:
        self._collect(lines[server], came)
        head = Head(RUN, when, net, number, stamp)
        lines[server].ask(messages.join(head, sent.pop((server, when), b'')))
      step = self._route.own.get(when)
      if step is not None:
        for peer in step.receives:
          self._collect(lines[peer], came)
        with self.spent.on(when):
          for peer in step.receives:
            passage.node.receive(step, peer, came.pop((peer, when)))
          passage.run(step)
          sent.update(((peer, when + 1), self._route.out[peer, when + 1].pack(passage.node.send(step, peer)))
                      for peer in step.sends)
    for server in self._route.servers:
      self._collect(lines[server], came)
    return passage.node.known[self._route.loss]

  def _collect(self, line: Line, came: dict[tuple[str, int], list[Any]]) -> None:
    """Takes a server's answer, if it was asked; what it sent in a round is for the next one."""
    if line.waits:
      head, body = self._answer(line)
      server = line.name.split('/')[-1]
      came[server, head.round + 1] = self._route.back[server, head.round].unpack(body)

  def _answer(self, line: Line) -> tuple[Head, memoryview]:
    begin = time.perf_counter()
    try:
      return line.answer()
    finally:
      self.waited += time.perf_counter() - begin


class Route:
  """Rounds of a batch as its trainer sees them."""

  def __init__(self, plan: Plan, programs: Mapping[str, Program]):
    graph, own = plan.graph, programs[TRAINER]
    self.own = {step.round: step for step in own.steps}
    steps = {(name, s.round): s for name, p in programs.items() if name != TRAINER for s in p.steps}
    self.servers = tuple(sorted({name for name, _ in steps}))
    self.rounds = sorted({*self.own, *(r for _, r in steps)})
    self.asked = {r: [name for name in self.servers if (name, r) in steps] for r in self.rounds}
    self.out = {key: messages.layout_of(graph, s.receives.get(TRAINER, ())) for key, s in steps.items()}
    self.back = {key: messages.layout_of(graph, s.sends.get(TRAINER, ())) for key, s in steps.items()}
    self.loss = next(v for n, v in own.results if graph.outputs[n].kind == LOSS)
    self._slots = [k for k, s in enumerate(graph.slots) if s.kind == BATCH]
    self._avals = [graph.avals[graph.slots[k].value] for k in self._slots]
    self._layout = ArrayBytes([messages.plain_shape(a) for a in self._avals])

  def batch(self, body: memoryview) -> dict[int, Any]:
    """Slots of a batch that came from a reader."""
    found = self._layout.unpack(body)
    return {k: messages.plain_value(x, a) for k, x, a in zip(self._slots, found, self._avals, strict=True)}
