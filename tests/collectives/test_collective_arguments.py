"""Law 7: what cannot work is refused early, with a sentence that says what came."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import dct_jax
from dct_jax import native, transport
from dct_jax.arrays import Stream
from dct_jax.collectives import Costs, all_gather, allreduce, sparse_all_reduce
from dct_jax.collectives.streams import Exchange
from dct_jax.transport import connect

needs_native = pytest.mark.skipif(not native.AVAILABLE, reason='the native kernels are not built')


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'algorithm': 'ring'}, "algorithm must be 'auto' or one of .* got algorithm='ring'"),
    ({'bits': 3}, 'bits must be 0, 2, 4 or 8, got .*bits=3'),
    ({'algorithm': 'split_all_gather', 'bits': 4}, "bits are for 'dsar' and 'auto', got bits=4"),
    ({'delta': 0.0}, 'delta must be above 0 and at most 1, got .*delta=0.0'),
    ({'delta': 1.5}, 'delta must be above 0 and at most 1'),
    ({'delta': float('nan')}, 'delta must be above 0 and at most 1'),
    ({'bucket': 100}, 'bucket must be a multiple of 32, got .*bucket=100'),
    ({'bucket': 0}, 'bucket must be a multiple of 32'),
    ({'index_codec': 'zip'}, "index_codec must be 'auto' or one of .*got .*index_codec='zip'")])
def test_sparse_all_reduce_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    sparse_all_reduce(**arguments)


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'algorithm': 'ring'}, "algorithm must be 'auto' or one of"),
    ({'op': 'mean'}, "op must be one of .* got op='mean'"),
    ({'size': 0}, 'size must be between 1 and 2\\^30, got size=0'),
    ({'size': 2**30 + 1}, 'size must be between'),
    ({'bits': 4}, "bits are for sums by 'dsar', got bits=4"),
    ({'bits': 4, 'algorithm': 'dsar', 'op': 'max'}, "bits are for sums by 'dsar'"),
    ({'bits': 5, 'algorithm': 'dsar'}, 'bits must be 0, 2, 4 or 8'),
    ({'delta': -1.0}, 'delta must be above 0 and at most 1'),
    ({'index_codec': 'zip'}, "index_codec must be 'auto' or one of")])
def test_exchanges_of_streams_refuse(arguments, message):
  with pytest.raises(ValueError, match=message):
    Exchange(**{'size': 10, 'axis_name': 'data'} | arguments)


def stream(indices=np.uint32, values=np.float32, more=0):
  return Stream(jnp.zeros(4, indices), jnp.zeros(4 + more, values), jnp.uint32(0))


@pytest.mark.parametrize(('given', 'arguments', 'message'), [
    (stream(indices=np.int32), {}, 'a stream has uint32 indices and as many values, got .*int32'),
    (stream(more=1), {}, 'as many values'),
    (stream(values=np.int32), {}, 'values must be float32, float64 or uint32, got .*int32'),
    (stream(values=jnp.bfloat16), {}, 'values must be float32, float64 or uint32'),
    (stream(), {'op': 'or'}, "'or' is for uint32, got .*float32"),
    (stream(values=np.uint32), {'algorithm': 'dsar', 'bits': 2}, 'bits are for float32, got bits=2')])
def test_streams_that_do_not_fit_are_refused(given, arguments, message):
  with pytest.raises(ValueError, match=message):
    allreduce(given, 10, None, **arguments)


@needs_native
@pytest.mark.parametrize('kind', ['sparse_all_reduce', 'all_gather', 'allreduce'])
def test_a_transport_needs_an_axis_of_its_size(kind):
  """Simulated workers have none."""
  group = transport.local_group(3)
  with group[0] as t:
    if kind == 'allreduce':
      call = lambda x: allreduce(Stream(jnp.zeros(4, jnp.uint32), x, jnp.uint32(0)), 10, 'data', transport=t)
      run = lambda: jax.vmap(call, axis_name='data')(jnp.zeros((2, 4)))
    else:
      collective = all_gather(transport=t) if kind == 'all_gather' else sparse_all_reduce('dsar', t)
      tx = dct_jax.compressed_mean(dct_jax.top_k(0.1), collective, 'data')
      run = lambda: dct_jax.simulate(tx, (jnp.zeros(2000),), 2)
    with pytest.raises(ValueError, match="the transport connects 3 workers, but axis_name='data' has [12]"):
      run()
  for t in group[1:]:  # their ends were made with the first one's
    t.open()
    t.close()


@needs_native
def test_auto_needs_costs_of_as_many_workers():
  group = transport.local_group(3)
  with pytest.raises(ValueError, match="'auto' chooses by measured costs: "):
    sparse_all_reduce('auto', group[0])
  with pytest.raises(ValueError, match='the costs were measured with 4 workers, got transport.size=3'):
    sparse_all_reduce('auto', group[0], costs=Costs.of_network(4, 1e6))
  assert group[0].traffic() == (0, 0, 0, 0.0)  # nothing was opened


@pytest.mark.parametrize('factory', [
    dct_jax.qsgd, dct_jax.identity, lambda: dct_jax.random_k(0.1, shared=True)],
    ids=['qsgd', 'identity', 'shared'])
def test_compressors_without_a_stream_are_refused_with_and_without_a_transport(factory):
  with pytest.raises(ValueError, match='sparse_all_reduce adds up sparse streams'):
    dct_jax.compressed_mean(factory(), sparse_all_reduce('split_all_gather'))
  if native.AVAILABLE:
    with transport.local_group(1)[0] as t, pytest.raises(ValueError, match='adds up sparse streams'):
      dct_jax.compressed_mean(factory(), sparse_all_reduce('split_all_gather', t))


@pytest.mark.parametrize('timeout', [0, -1.0, float('nan')])
def test_timeouts_are_positive(timeout):
  with pytest.raises(ValueError, match='timeout must be positive, got timeout='):
    transport.local_group(2, timeout)


@needs_native
def test_connect_refuses_an_unknown_axis():
  with pytest.raises(ValueError, match="the mesh has axes \\('data',\\), got axis_name='model'"):
    connect(dct_jax.make_mesh(1), 'model')


@needs_native
def test_connect_refuses_several_devices_of_a_process():
  with pytest.raises(ValueError, match='one device each, got a mesh with several devices of one process'):
    connect(dct_jax.make_mesh(2))


@needs_native
def test_connect_refuses_a_mesh_without_this_process(monkeypatch):
  monkeypatch.setattr(jax, 'process_index', lambda: 7)
  with pytest.raises(ValueError, match='process 7 has no device in the mesh'):
    connect(dct_jax.make_mesh(1))


def test_connect_needs_the_native_kernels(monkeypatch):
  monkeypatch.setattr(native.loader, '_native', None)
  with pytest.raises(RuntimeError, match='this needs the native kernels'):
    connect(types.SimpleNamespace(shape={}))


@needs_native
def test_one_process_is_a_group_of_its_own():
  with connect(dct_jax.make_mesh(1), timeout=5.0) as t:
    assert (t.rank, t.size) == (0, 1)
    assert isinstance(dct_jax.make_mesh(1), Mesh)
    x = Stream(jnp.array([3, 7], jnp.uint32), jnp.array([1.0, 2.0]), jnp.uint32(2))
    out = jax.vmap(lambda v: allreduce(x._replace(values=v), 10, 'data', transport=t, algorithm='dsar'),
                   axis_name='data', in_axes=None, axis_size=1, out_axes=None)(x.values)
    np.testing.assert_array_equal(out, [0, 0, 0, 1, 0, 0, 0, 2, 0, 0])
