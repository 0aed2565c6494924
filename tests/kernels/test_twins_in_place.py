"""The twins where they are the library: on the default ladder, in a mesh, and lowered for accelerators.

Native kernels say what is right. Every compressor of the laws is here, a new one by itself. A selection takes ten
seconds to compile on 16 rungs, so that most are slow tests; one of each kind of compressor is not.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import laws
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from marks import slow

import dct_jax
from dct_jax import contract, kernels
from dct_jax.collectives import ladder
from dct_jax.collectives.parts import merged

SHAPES = ((256, 64), (17, 13), (5,), ())
PARAMS = tuple(jnp.zeros(s) for s in SHAPES)
QUICK = {'xla_backend_optimization_level': 0}  # half of the time to compile
COLLECTIVE = re.compile(r'stablehlo\.(all_gather|all_reduce|all_to_all|reduce_scatter|collective_\w+)\b')
WORKERS = 3


def compressors(quick):
  """Their names, for a test that is slow but for some of them."""
  return pytest.mark.parametrize('name', [
      pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in laws.COMPRESSORS])


def transform(name):
  compressor = laws.make(name)
  return dct_jax.compressed_mean(compressor, dct_jax.psum() if compressor.summed else None, 'data')


@functools.cache
def in_mesh(name, workers):
  """Traced with the twins, where JAX tracks what varies; and the first state."""
  tx, mesh = transform(name), dct_jax.make_mesh(workers)
  _, state, specs = dct_jax.init(tx, PARAMS, mesh)
  step = jax.jit(jax.shard_map(
      lambda g, s: tx.update(tuple(x.reshape(x.shape[1:]) for x in g), s), mesh=mesh,
      in_specs=(P('data'), specs), out_specs=(P(), specs)))
  with kernels.use_native(False):
    return step.trace(gradients(workers)[0], state), state


def simulated(name, workers, native):
  update, state = dct_jax.simulate(transform(name), PARAMS, workers)
  with kernels.use_native(native):
    compiled = update.lower(gradients(workers)[0], state, None).compile(compiler_options=QUICK)
  return lambda g, s: compiled(g, s, None), state


def gradients(workers):
  return laws.gradients(workers, 5, shapes=SHAPES)


def rungs(name, workers):
  """Of the default ladder; below the dense exchange."""
  return ladder.rungs(laws.make(name).size(PARAMS), workers, 16, True)


def run(step, state, workers):
  """Updates and states of some steps: on the usual rung, the shortest, the longest, in the dense exchange, and
  where the ladder itself goes from there."""
  out = []
  for grads, wanted in zip(gradients(workers), (None, 0, None, 10**6, None), strict=True):
    if wanted is not None and hasattr(state.collective, 'wanted'):
      like = state.collective.wanted
      state = state._replace(collective=state.collective._replace(
          wanted=jax.device_put(jnp.uint32(wanted), like.sharding)))
    updates, state = jax.block_until_ready(step(grads, state))
    out.append((updates, state))
  return out


@functools.cache
def truth(name, workers):
  """By the native kernels."""
  return run(*simulated(name, workers, True), workers)


def assert_same(got, want, exact):
  """Bit for bit, or to what rounding makes of five steps."""
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    x = x.reshape(y.shape)  # a mesh has the workers' axis inside of the first one
    np.testing.assert_allclose(x, y, rtol=0, atol=0 if exact else 1e-4)


def assert_conserved(name, steps, workers):
  """All updates plus what is left are all gradients."""
  if laws.make(name).conserves == contract.NOTHING:
    return
  _, state = steps[-1]
  for i, shape in enumerate(SHAPES):
    given = sum(np.asarray(g[i], np.float64).mean(0) for g in gradients(workers))
    told = sum(np.asarray(updates[i], np.float64) for updates, _ in steps)
    left = np.asarray(state.residual[i], np.float64).reshape(workers, *shape).mean(0)
    np.testing.assert_allclose(told + left, given, rtol=1e-5, atol=1e-4)


@compressors({'qsgd', 'power_sgd'})
def test_simulated_workers_are_those_of_native_kernels(name):
  steps = run(*simulated(name, WORKERS, False), WORKERS)
  assert_same(steps, truth(name, WORKERS), exact=laws.make(name).conserves != contract.TOGETHER)
  assert_conserved(name, steps, WORKERS)
  moved = {int(state.stats.receipt.moved_bytes) for _, state in steps}
  if not laws.make(name).summed and len(rungs(name, WORKERS)) > 1:
    assert len(moved) >= 3, 'the rung has not changed'


@pytest.mark.parametrize('workers', [pytest.param(2, marks=pytest.mark.slow), 3])
@compressors(laws.CORE - {'dct'})
def test_a_mesh_is_equal_to_native_kernels(name, workers):
  """Bit for bit, but for the dense exchange, which may add in another order."""
  traced, state = in_mesh(name, workers)
  steps = run(traced.lower().compile(compiler_options=QUICK), state, workers)
  for i, (got, want) in enumerate(zip(steps, truth(name, workers), strict=True)):
    assert_same(got, want, exact=i != 3 and not laws.make(name).summed)
  assert_conserved(name, steps, workers)
  for updates, _ in steps:
    for x in updates:
      for replica in x.addressable_shards:
        np.testing.assert_array_equal(replica.data, x)


@pytest.mark.parametrize('platform', ['tpu', 'cuda'])
@compressors(laws.CORE | {name for name in laws.COMPRESSORS if laws.make(name).stream is None})
def test_accelerators_get_one_collective_a_rung_and_no_callback(name, platform):
  found = collectives_for(platform, in_mesh(name, WORKERS)[0])
  compressor = laws.make(name)
  if compressor.summed:  # words that add as integers are one part of a message, words that add as numbers another
    rounds = [r.parts for r in compressor.rounds.each] if compressor.rounds else [compressor.linear]
    assert found.total() == sum(len(merged(parts(PARAMS, WORKERS))) for parts in rounds)
  else:  # the dense exchange is a sum beside headers
    assert found == {'all_gather': len(rungs(name, WORKERS)) + 1, 'all_reduce': 1}


def collectives_for(platform, traced):
  """How often a program has each of them, if it is all of it for a platform."""
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert 'callback' not in text and 'dct_jax_' not in text
  return collections.Counter(COLLECTIVE.findall(text))


@pytest.mark.parametrize('collective', ['union_sum', *slow('s2')])
def test_sums_of_blocks(collective):
  """In a mesh of twins they are those of native kernels, and lower to plain sums for accelerators."""
  tx, mesh = laws.transform('block_top_k', collective), dct_jax.make_mesh(WORKERS)
  step, state = dct_jax.simulate(tx, PARAMS, WORKERS)
  want = [step(g, state, None)[0] for g in gradients(WORKERS)[:2]]
  _, state, specs = dct_jax.init(tx, PARAMS, mesh)
  real = jax.jit(jax.shard_map(
      lambda g, s: tx.update(tuple(x.reshape(x.shape[1:]) for x in g), s), mesh=mesh,
      in_specs=(P('data'), specs), out_specs=(P(), specs)))
  with kernels.use_native(False):
    traced = real.trace(gradients(WORKERS)[0], state)
  compiled = traced.lower().compile(compiler_options=QUICK)
  for g, x in zip(gradients(WORKERS)[:2], want, strict=True):
    assert_same(compiled(g, state)[0], x, exact=False)
  for platform in ('tpu', 'cuda'):
    found = collectives_for(platform, traced)
    assert found['all_gather'] == 1  # of bitmaps, to be OR-ed
    assert found['all_reduce'] == found.total() - 1 > 1  # one for each length


@pytest.mark.parametrize(('rungs', 'simulated'), [(3, [True]), pytest.param(12, [True, False], marks=pytest.mark.slow)])
def test_push_and_pull(rungs, simulated):
  """A parameter server of twins, in a mesh or simulated, is that of native kernels; and lowers as well."""
  compressor = laws.make('three_lc')
  make = lambda: dct_jax.push_pull(compressor, compressor, optax.sgd(0.5), 'data', workers=WORKERS, rungs=rungs)
  grads, params, results = [g[::2] for g in gradients(WORKERS)[:3]], PARAMS[::2], []
  for native in simulated:
    update, state = dct_jax.simulate(make(), params, WORKERS)
    with kernels.use_native(native):
      results.append(run_server(update.lower(grads[0], state, params), state, grads, params))
  tx, mesh = make(), dct_jax.make_mesh(WORKERS)
  params, state, specs = dct_jax.init(tx, params, mesh)
  step = jax.jit(jax.shard_map(
      lambda g, s, p: tx.update(tuple(x.reshape(x.shape[1:]) for x in g), s, p), mesh=mesh,
      in_specs=(P('data'), specs, P()), out_specs=(P(), specs)))
  with kernels.use_native(False):
    traced = step.trace(grads[0], state, params)
  results.append(run_server(traced.lower(), state, grads, params))
  for other in results[1:]:
    assert_same(other, results[0], exact=True)
  for platform in ('tpu', 'cuda'):
    found = collectives_for(platform, traced)
    assert found['all_to_all'] == found['all_gather'] == found.total() / 2 <= rungs


def run_server(lowered, state, grads, params):
  """Updates and states; on the usual rungs, the shortest, and those that follow."""
  step, out = lowered.compile(compiler_options=QUICK), []
  for i, g in enumerate(grads):
    if i == 1:
      short = jax.tree.map(lambda x: jax.device_put(jnp.uint32(0), x.sharding), state.owners)
      state = state._replace(owners=short)
    updates, state = jax.block_until_ready(step(g, state, params))
    out.append((updates, state))
  return out


def test_a_step_with_a_corrupt_message_is_called_off_and_counted(native):
  """The message stays in the residual, and nothing of the step is applied; whoever asks raises for it."""
  damaged = lambda compressor, words, *args: compressor.decompress(words.at[1, -1].add(1), *args)
  tx = dct_jax.compressed_mean(laws.make('int8'), dct_jax.collectives.all_gather(1, False, decode=damaged), 'data')
  update, state = dct_jax.simulate(tx, PARAMS[1:2], 2)
  dct_jax.raise_if_bad(state)
  grads = gradients(2)[0][1:2]
  updates, state = update(grads, state, None)
  assert int(state.stats.corrupt) == 1
  assert not any(np.asarray(u).any() for u in updates)
  for e, g in zip(state.residual, grads, strict=True):
    np.testing.assert_allclose(e.reshape(g.shape), g, rtol=1e-5, atol=1e-5)
  with pytest.raises(RuntimeError, match='1 messages failed their checks'):
    dct_jax.raise_if_bad(state)


SORT = re.compile(r'"stablehlo\.sort"\(.*?dimension = (\d+).*?\}\) : \(tensor<([\dx]+)x\w+>', re.DOTALL)
QUICK_PAIRS = {('dct', 'all_gather'), ('three_lc', 'all_gather'), ('power_sgd', 'psum'), ('block_top_k', 'union_sum')}


@pytest.mark.parametrize(('name', 'collective'), [
    pytest.param(*pair, marks=() if pair in QUICK_PAIRS else pytest.mark.slow) for pair in laws.PAIRS])
def test_every_pair_is_exported_for_accelerators(name, collective):
  """As a program that stands alone: no effects, no calls to the host, one collective a round, no sort of a layer."""
  tx, mesh = laws.transform(name, collective), dct_jax.make_mesh(WORKERS)
  _, state, specs = dct_jax.init(tx, laws.PARAMS, mesh)
  step = jax.jit(jax.shard_map(
      lambda g, s: tx.update(tuple(x.reshape(x.shape[1:]) for x in g), s), mesh=mesh,
      in_specs=(P('data'), specs), out_specs=(P(), specs)))
  with kernels.use_native(False):
    exported = jax.export.export(step, platforms=('tpu', 'cuda'))(laws.gradients(WORKERS, 1)[0], state)
  text = exported.mlir_module()
  assert exported.platforms == ('tpu', 'cuda')
  assert 'callback' not in text and 'dct_jax_' not in text
  found = collections.Counter(COLLECTIVE.findall(text))
  branches = {'union_sum': 3, 's2': 3 + 8, 'psum': 4}.get(collective, 3 + 1)
  assert 1 <= found.total() <= 2 * branches, found
  longest = max(x.size for x in laws.PARAMS)
  sorted_along = [int(shape.split('x')[int(axis)]) for axis, shape in SORT.findall(text)]
  assert len(sorted_along) == text.count('"stablehlo.sort"')
  assert name == 'dct_sort' or all(n < longest for n in sorted_along), sorted_along
  assert name != 'dct_sort' or longest in sorted_along  # the pattern finds what it looks for


@pytest.mark.parametrize('name', ['top_k', 'qsgd', 'three_lc', 'int8', 'identity'])
def test_no_gradient_goes_through_a_mean(name, native):
  """Silent zeros would be wrong: twins refuse as native kernels do."""
  tx = laws.transform(name, 'psum' if laws.make(name).summed else 'all_gather', axis_name=None)
  told = lambda g: sum(jnp.sum(u) for u in tx.update(g, tx.init(laws.PARAMS))[0])
  for how in (jax.grad, lambda f: jax.jit(jax.grad(f))):
    with pytest.raises(ValueError, match=r'has no gradient|cannot be differentiated'):
      how(told)(jax.tree.map(jnp.ones_like, laws.PARAMS))


def test_a_boundary_has_gradients_all_the_same(native):
  grad = jax.grad(lambda x: jnp.sum(dct_jax.sparse_boundary(x, 0.75) * 7))(jnp.array([[1.0, -4.0, 0.0, 3.0]]))
  assert grad.tolist() == [[0, 7, 0, 7]]
