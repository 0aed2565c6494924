"""Compressed pulls that workers of different speeds share."""

import functools
import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest
from reference import three_lc as oracle

import dct_jax
from dct_jax.runtime.pulls import Pulls

SHAPES = {'w': (20, 9), 'b': (40,)}


def draw(seed, scale=1.0):
  rng = np.random.default_rng(seed)
  return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


@functools.cache
def compressor():
  return dct_jax.three_lc(1.5, dense_below=0)


class Cluster:
  """A server whose model changes, workers with models of their own, and the oracle's local models by their history."""

  def __init__(self, workers):
    self.server, self.step = Pulls(draw(0), compressor()), 0
    self.mine = {w: dict(self.server.join(w)) for w in range(workers)}
    self.history = {(w, name): ('join',) for w in range(workers) for name in SHAPES}
    self.locals = {(name, ('join',)): x for name, x in draw(0).items()}

  def update(self, *names):
    self.step += 1
    change = draw(self.step, 0.1)
    for name in names or SHAPES:
      self.server.update(name, self.server.model[name] + change[name])

  def pull(self, worker, name):
    message = self.server.pull(worker, name)
    if message is None:
      return None
    self.mine[worker][name] = self.server.add(self.mine[worker][name], message)
    before = self.history[worker, name]
    after = self.history[worker, name] = (*before, self.server.versions[name])
    if (name, after) not in self.locals:
      old = self.locals[name, before]
      q, m = oracle.quantize(np.asarray(self.server.model[name]) - old, 1.5)
      self.locals[name, after] = old + oracle.dequantize(q, m)
    return message

  def check(self):
    for worker, tensors in self.mine.items():
      for name, x in tensors.items():
        whole = x + self.server.residual(worker, name)
        np.testing.assert_allclose(whole, self.server.model[name], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(x, self.locals[name, self.history[worker, name]], rtol=1e-5, atol=1e-5)
    for name in SHAPES:
      found = self.server.contexts(name)
      groups = {}
      for w in self.mine:
        groups.setdefault(self.history[w, name], set()).add(w)
      assert sorted(map(sorted, (c.workers for c in found))) == sorted(map(sorted, groups.values()))
      for context in found:
        for w in context.workers:
          np.testing.assert_array_equal(self.mine[w][name], context.local)


def test_workers_at_one_speed_share_everything():
  cluster = Cluster(4)
  for _ in range(5):
    cluster.update()
    messages = [[cluster.pull(w, name) for w in range(4)] for name in SHAPES]
    assert all(m is some[0] for some in messages for m in some)
    cluster.check()
  server = cluster.server
  assert server.compressed == 5 * len(SHAPES) and server.answered == 4 * server.compressed
  assert all(len(server.contexts(name)) == 1 for name in SHAPES)


def test_workers_at_several_speeds():
  """Two that pull every version, two that pull every third, and one that stops: three contexts, freed as they end."""
  cluster = Cluster(5)
  for step in range(1, 10):
    cluster.update()
    for w in (0, 1, *((2, 3) if step % 3 == 0 else ())):
      for name in SHAPES:
        cluster.pull(w, name)
    cluster.check()
  server = cluster.server
  assert [len(server.contexts(name)) for name in SHAPES] == [3, 3]
  assert server.compressed == 2 * (9 + 3) and server.answered == 2 * server.compressed
  for w in (4, 2, 3):
    cluster.server.leave(w)
    del cluster.mine[w]
    cluster.check()
  assert [len(server.contexts(name)) for name in SHAPES] == [1, 1]
  for w in (0, 1):
    server.leave(w)
  assert [server.contexts(name) for name in SHAPES] == [[], []]


def test_tensors_are_pulled_one_by_one():
  cluster = Cluster(2)
  cluster.update('w')
  assert cluster.pull(0, 'b') is None and cluster.pull(0, 'w') is not None
  assert cluster.pull(0, 'w') is None  # it is there
  cluster.update('b')
  cluster.pull(0, 'b')
  cluster.pull(1, 'b')
  assert [len(cluster.server.contexts(name)) for name in ('w', 'b')] == [2, 1]
  cluster.pull(1, 'w')
  assert len(cluster.server.contexts('w')) == 1  # the other one's message was kept, as the version is the same
  assert cluster.server.compressed == 2
  cluster.check()


def test_contexts_are_freed():
  """A worker that stands still keeps its own context alone, not all that others have pulled since."""
  cluster, seen = Cluster(2), weakref.WeakSet()
  for _ in range(6):
    cluster.update()
    for name in SHAPES:
      cluster.pull(0, name)
      seen.update(cluster.server.contexts(name))
  gc.collect()
  assert len(seen) == sum(len(cluster.server.contexts(name)) for name in SHAPES) == 4


def test_random_orders():
  cluster, rng = Cluster(4), np.random.default_rng(3)
  for _ in range(40):
    if rng.random() < 0.3:
      cluster.update(*rng.choice(list(SHAPES), rng.integers(1, 3), replace=False))
    else:
      cluster.pull(int(rng.integers(4)), str(rng.choice(list(SHAPES))))
  cluster.check()
  assert cluster.server.compressed < cluster.server.answered


def test_what_was_left_out_comes_later():
  """The server stands still but for its version: errors get smaller with every pull."""
  cluster, left = Cluster(1), []
  cluster.update()
  for _ in range(12):
    cluster.pull(0, 'w')
    left.append(float(jnp.abs(cluster.server.residual(0, 'w')).max()))
    cluster.server.update('w', cluster.server.model['w'])
  assert left[-1] < 0.2 * left[0]


def test_who_joins_late_has_the_whole_model():
  cluster = Cluster(1)
  cluster.update()
  first, second = (cluster.server.join(w) for w in ('late', 'later'))
  for name in SHAPES:
    np.testing.assert_array_equal(first[name], cluster.server.model[name])
    assert {'late', 'later'} in [c.workers for c in cluster.server.contexts(name)]
  assert second['w'] is first['w'] and not np.any(cluster.server.residual('late', 'w'))


def test_messages_are_as_long_as_they_are():
  cluster = Cluster(1)
  cluster.update()
  message = cluster.pull(0, 'w')
  assert len(message) * 4 < 0.25 * cluster.server.model['w'].nbytes


@pytest.mark.parametrize(('make', 'message'), [
    (lambda s: s.join(0), '0 is here already'),
    (lambda s: s.pull(7, 'w'), '7 has not joined'),
    (lambda s: s.update('w', np.zeros(3, np.float32)), 'has the shape'),
    (lambda s: s.update('w', np.full((20, 9), np.nan, np.float32)), 'must be finite float32'),
    (lambda s: s.update('b', np.zeros(40, np.int32)), 'must be finite float32, got int32'),
    (lambda s: s.add(s.model['w'], np.zeros(9999, np.uint32)), 'got 9999'),
    (lambda s: s.add(s.model['w'], np.zeros(9, np.uint32)), 'failed its checks'),
    (lambda s: Pulls(s.model, dct_jax.identity()), 'not for psum')])
def test_bad_input(make, message):
  server = Cluster(1).server
  with pytest.raises(ValueError, match=message):
    make(server)
