"""Which algorithm a step of 'auto' asks the transport for."""

import sys

import jax
import jax.numpy as jnp
import pytest

import dct_jax
from dct_jax import native, transport
from dct_jax.collectives import Costs, sparse_all_reduce
from dct_jax.collectives.algorithms import ALGORITHMS
from dct_jax.contract import Packed

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason='the native kernels are not built')
MODULE = sys.modules['dct_jax.collectives.sparse_all_reduce']  # whose name the function has, too


class Asked(Exception):
  """Somebody has asked for an exchange."""


def asked_for(monkeypatch, costs, dense_fallback=True):
  """The name of the algorithm of the first step of block top-k, with two workers."""

  def exchange(*unused, algorithm, **named):
    raise Asked(ALGORITHMS[int(algorithm)])

  monkeypatch.setattr(MODULE, 'reduce_messages', exchange)
  group = transport.local_group(2)
  try:
    collective = sparse_all_reduce('auto', group[0], costs=costs, dense_fallback=dense_fallback)
    group[1].open()
    compressor, layers = dct_jax.block_top_k(0.1, 256, dense_below=0), (jnp.ones(2**18),)
    size = compressor.size(layers)
    state = collective.init(size)
    room = collective.room(state, size, 2)
    packed = Packed(jnp.zeros(room.capacity, jnp.uint32), None, ())
    step = lambda unused: collective.reduce(compressor, layers, packed, None, state, room, 'data')
    with pytest.raises(Asked) as asked:
      jax.vmap(step, axis_name='data')(jnp.zeros(2))
    return str(asked.value)
  finally:
    for t in group:
      t.close()


@pytest.mark.parametrize('name', ALGORITHMS)
def test_the_cheapest(name, monkeypatch):
  free, dear = (0.0,) * 4, (1.0, 0.0, 0.0, 0.0)
  costs = Costs(tuple(free if a == name else dear for a in ALGORITHMS), 2)
  assert asked_for(monkeypatch, costs) == name
  # Without the dense exchange of all that is pending, messages are summed densely instead.
  assert asked_for(monkeypatch, costs, dense_fallback=False) == ('dsar' if name == 'dense' else name)


def test_the_unit_of_messages_counts(monkeypatch):
  """A bitmap of 2^18 values takes 32,768 bytes, one of their blocks 128; the values of the union some 209,000."""
  byte = {'union': 1.0, 'dense': 225_000 / 2**20}
  costs = Costs(tuple((0.0, byte.get(a, 1e3), 0.0, 0.0) for a in ALGORITHMS), 2)
  assert asked_for(monkeypatch, costs) == 'union'
