"""The training loop; there is only this one."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import tqdm
from absl import logging
from jax.experimental import multihost_utils

from dct_jax.collectives.s2 import OVERLOADED
from dct_jax.commands import TERMINATED
from dct_jax.train import replicas
from dct_jax.train.checkpoint import Checkpoints
from dct_jax.train.metrics import MetricsWriter
from dct_jax.train.phases import phase
from dct_jax.train.step import BYTES
from dct_jax.transforms.compressed_mean import bad_counts, raise_for

SENT = ('sent_bytes', 'row_bytes', 'crossed_bytes')  # by a worker: of gradients, of rows, between its stages
STEP = 'computing and exchanging'  # a phase


class TrainResult(NamedTuple):
  """What `run` returns."""

  params: Any
  opt_state: Any
  step: int  # steps taken in all, those before `start` included
  history: list[dict[str, float]]  # what was logged, in order


def run(
    step: Callable,
    params: Any,
    opt_state: Any,
    batches: Iterable[Any],
    *,
    steps: int,
    start: int = 0,
    log_every: int = 10,
    metrics: MetricsWriter | None = None,
    progress: bool = True,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int | None = None,
    evaluate: Callable[[Any, Any], dict] | None = None,
    evaluate_every: int | None = None,
    examples: int | None = None,
    unit: str = 'examples',
    show: Sequence[str] = (),
    stop_on_nan: bool = True,
    compare_every: int | None = 1000,
) -> TrainResult:
  """Trains from step `start` until `steps` steps have been taken in all.

  Each step is waited for before the next one is dispatched: several host devices in one process can
  deadlock otherwise. The next batch is fetched in the meantime. The last step is always logged,
  evaluated and saved.

  Args:
    step: from `make_step`; takes over the memory of `params` and `opt_state`.
    params: from `dct_jax.init` or `Checkpoints.restore`.
    opt_state: likewise.
    batches: placed batches (`shard_batch`), beginning with that of step `start`; as many on every
      process, or those that still have some wait for the others for ever.
    steps: number of the last step.
    start: steps that were taken before.
    log_every: steps between two lines of the log. A line has the metrics of its step, the bytes of
      one worker since step 0 (`total_encoded_bytes`, `total_moved_bytes`, `total_sent_bytes`, ... of messages with
      gradients; `total_dense_bytes`, the float32 gradients for comparison; `total_row_bytes`, sent for rows of tables;
      `total_crossed_bytes`, sent between stages), `steps_per_second`, `bytes_per_second` (sent, of all three) since
      the line before, `compression` (dense over encoded bytes of gradients since then; not where nothing is sent), and
      `step_seconds`, the median of what steps alone have taken since then, without batches, evaluations, checkpoints.
    metrics: where the log goes, beside the result's history.
    progress: whether process 0 shows a bar.
    checkpoints: where to save; Ctrl-C and SIGTERM save there, too.
    checkpoint_every: steps between checkpoints; None saves at the end only.
    evaluate: (params, opt_state) -> dict of scalars, logged as `eval/name`.
    evaluate_every: steps between evaluations; None evaluates at the end only.
    examples: in a step, of all workers together, for `examples_per_second`; a mean, if steps differ.
    unit: what they are called.
    show: names of evaluated scalars that the bar shows, as of the last evaluation, if it had them.
    stop_on_nan: whether a loss that is NaN is an error, unless its gradient was caught and skipped
      (`nonfinite='skip'` of a compressed mean); the tenth such step in a row is one, too.
    compare_every: steps between comparisons of all workers' parameters, by hashes of their bits (`check_replicas`);
      None compares at the start only.

  Returns:
    A `TrainResult`. It ends early, with a warning, if there are not enough batches.

  Raises:
    ValueError: for counts that make no sense.
    FloatingPointError: if the loss is NaN, or a gradient was not finite where `nonfinite='raise'`, with the step;
      nothing is saved then.
    KeyboardInterrupt: after Ctrl-C, when the step has ended and its checkpoint is written.
    SystemExit: after SIGTERM, likewise, with exit code 143.
    RuntimeError: if replicated values differ between workers, at the start or later; it names the workers. If a message
      failed its checks.
  """
  if not 0 <= start <= steps:
    raise ValueError(f'start must be between 0 and steps, got {start=} and {steps=}')
  for name, every in [('log_every', log_every), ('checkpoint_every', checkpoint_every),
                      ('evaluate_every', evaluate_every), ('compare_every', compare_every)]:
    if every is not None and every < 1:
      raise ValueError(f'{name} must be at least 1, got {every=}')
  if checkpoints is not None and (checkpoints.latest() or 0) > start:
    raise ValueError(f'{checkpoints.directory} holds step {checkpoints.latest()} already, got {start=}: '
                     'restore it (--resume in experiments), or use another directory')
  if jax.process_count() > 1:  # one process has made its replicas of the same arrays
    replicas.check_replicas((params, opt_state))
  if checkpoints is not None:
    checkpoints.claim()  # makes the directory: no process is still looking whether it is there
  account = _Account(params, checkpoints.totals(start) if checkpoints and start else {}, examples, unit)
  source, at, history, stop = iter(batches), start, [], None
  patience, counts = _Patience(), _Counts(opt_state)
  with _Bar(start, steps, progress) as bar, _interrupts() as interrupted:
    batch = next(source, None) if start < steps else None
    while at < steps and batch is not None:
      began = time.monotonic()
      at += 1
      with phase(STEP, at):
        params, opt_state, scalars = step(params, opt_state, batch)
      with phase('reading the next batch', at):
        batch = next(source, None) if at < steps else None
      with phase(STEP, at):  # which may only now be known to have failed
        scalars = account.add(jax.device_get(scalars), began)
      bar.update(scalars, account)
      counts.check(at, scalars)
      if compare_every is not None and at % compare_every == 0:
        with phase('comparing replicas', at):
          replicas.check_replicas(params)
      if stop_on_nan:
        patience.check(at, scalars)
      if at == start + 1:
        _warn_of_load(scalars)
      last = at == steps or batch is None
      due = lambda every: last or (every is not None and at % every == 0)
      extra = {}
      if evaluate is not None and due(evaluate_every):
        with phase('evaluating', at):
          extra = {f'eval/{k}': float(v) for k, v in jax.device_get(evaluate(params, opt_state)).items()}
        bar.evaluated = {k: f'{extra["eval/" + k]:.4f}' for k in show if f'eval/{k}' in extra}
      if extra or due(log_every):
        history.append({'step': at} | scalars | account.line() | extra)
        if metrics is not None:
          metrics.write(at, {k: v for k, v in history[-1].items() if k != 'step'})
      stop = interrupted(at)
      if checkpoints is not None and (stop or due(checkpoint_every)):
        with phase('saving a checkpoint', at):
          checkpoints.save(at, params, opt_state, account.totals)
      if stop:
        break
    if jax.process_count() == 1:  # a signal in the last save is not forgotten; several have no step to agree on
      stop = interrupted(at)
  if stop:  # after the bar's last line
    raise _farewell(stop, at, checkpoints)
  if at < steps:
    logging.warning('batches ended after step %d of %d', at, steps)
  return TrainResult(params, opt_state, at, history)


def _warn_of_load(scalars):
  """Of a sketch that is too small for what workers have together, which only a step can tell."""
  lam = scalars.get('s2_union_lambda', 1.0)
  if 0 < lam < 1 / OVERLOADED:
    logging.warning('the sketch of s2 is too small for its load: every number of it holds %.1f entries of all workers '
                    'together (the load factor), so that its error has as many times the energy of the signal', 1 / lam)


class _Patience:
  """With NaN losses: none, but for steps that a compressed mean has caught and skipped; ten of those."""

  MOST = 10

  def __init__(self):
    self._caught, self._row = 0, 0

  def check(self, step, scalars):
    caught = scalars.get('nonfinite', 0)
    skipped, self._caught = caught > self._caught, caught
    self._row = self._row + 1 if math.isnan(scalars['loss']) else 0
    if self._row and (not skipped or self._row >= self.MOST):
      raise FloatingPointError(f'the loss is NaN in step {step}')


class _Counts:
  """What compressed means count, which no program on an accelerator could raise for."""

  NAMES = ('corrupt', 'refused')

  def __init__(self, opt_state):
    self._before = bad_counts(opt_state)  # of a state that somebody let pass

  def check(self, step, scalars):
    now = [int(scalars.get(name, before)) for name, before in zip(self.NAMES, self._before, strict=True)]
    raise_for(now[0] - self._before[0], now[1] - self._before[1], f' in step {step}')


class _Account:
  """Bytes so far, in Python's integers: those of a uint32 are used up within minutes."""

  def __init__(self, params, totals, examples, unit):
    self.examples, self.unit = examples, unit
    self.dense = sum(4 * x.size for x in jax.tree.leaves(params))
    self.totals = dict(totals)
    self._mark()

  def _mark(self):
    self.since, self.time, self.seconds = dict(self.totals), time.monotonic(), []

  def _add_total(self, name, amount):
    self.totals[name] = self.totals.get(name, 0) + amount

  def add(self, scalars, began):
    """Adds a step that began at some time and has just ended; returns its metrics as Python numbers."""
    self.seconds.append(time.monotonic() - began)
    scalars = {k: v.item() for k, v in scalars.items()}
    for name in (*BYTES, *SENT[1:]):
      if name in scalars:
        self._add_total(f'total_{name}', scalars[name])
    if 'encoded_bytes' in scalars:
      self._add_total('total_dense_bytes', scalars.get('dense_bytes', self.dense))
    return scalars

  def _bytes(self, name):
    return self.totals.get(f'total_{name}', 0) - self.since.get(f'total_{name}', 0)

  def rates(self):
    """Since the last line of the log."""
    seconds = max(time.monotonic() - self.time, 1e-9)
    out = {'steps_per_second': len(self.seconds) / seconds}
    if self.examples:
      out[f'{self.unit}_per_second'] = self.examples * len(self.seconds) / seconds
    if 'total_sent_bytes' in self.totals:
      out['bytes_per_second'] = sum(map(self._bytes, SENT)) / seconds
      if self._bytes('sent_bytes'):
        out['compression'] = self._bytes('dense_bytes') / max(self._bytes('encoded_bytes'), 1)
    return out

  def line(self):
    """For the log; the next rates start here."""
    out = self.totals | self.rates() | {'step_seconds': statistics.median(self.seconds)}
    self._mark()
    return out


class _Bar:
  """tqdm on process 0."""

  def __init__(self, start, steps, progress):
    # A terminal is refreshed in place; a log file should not get ten lines a second.
    seconds = 0.1 if sys.stderr.isatty() else 20.0
    self._bar = tqdm.tqdm(initial=start, total=steps, unit='step', file=sys.stderr, mininterval=seconds,
                          disable=not progress or jax.process_index() != 0)
    self.evaluated = {}

  def update(self, scalars, account):
    if self._bar.disable:
      return
    shown = {'loss': f'{scalars["loss"]:.4g}'}
    if 'density' in scalars:
      shown['density'] = f'{scalars["density"]:.2%}'
    rates = account.rates()
    if 'compression' in rates:
      shown['compression'] = f'{rates["compression"]:.1f}x'
    if rates.get('bytes_per_second'):
      shown['sent'] = tqdm.tqdm.format_sizeof(rates['bytes_per_second'], 'B/s')
    if account.examples:
      shown[account.unit] = tqdm.tqdm.format_sizeof(rates[f'{account.unit}_per_second'], '/s')
    self._bar.set_postfix(shown | self.evaluated, refresh=False)
    self._bar.update()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._bar.close()


@contextlib.contextmanager
def _interrupts():
  """Turns Ctrl-C and SIGTERM into a question to ask between steps: `asked(step) -> signal, or None`.

  In the middle of a step the arrays are donated, there is nothing to save. Of several processes all
  must stop after the same step. JAX's preemption service agrees on one when a process gets SIGTERM;
  Ctrl-C is handed on to it. A second signal stops at once. A handler of SIGTERM that somebody else has set is left
  alone.
  """
  alone, pressed = jax.process_count() == 1, []
  again: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
  if alone and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
    again[signal.SIGTERM] = signal.SIG_DFL
  if threading.current_thread() is not threading.main_thread():
    again = {}

  def press(number, _):
    signal.signal(number, again[number])
    pressed.append(number)
    if not alone:
      os.kill(os.getpid(), signal.SIGTERM)

  def asked(step):
    if not alone and not multihost_utils.reached_preemption_sync_point(step):
      return None
    return pressed[0] if pressed else None if alone else signal.SIGTERM

  before = {number: signal.signal(number, press) for number in again}
  try:
    yield asked
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _farewell(number, step, checkpoints):
  """What ends a run that was asked to stop, after saying where it is."""
  how = 'interrupted' if number == signal.SIGINT else 'ended by SIGTERM'
  message = f'{how} after step {step}; ' + (
      f'saved in {checkpoints.directory}' if checkpoints else 'there is no checkpoint')
  if jax.process_index() == 0:
    print(message, file=sys.stderr, flush=True)
  return KeyboardInterrupt(message) if number == signal.SIGINT else SystemExit(TERMINATED)
