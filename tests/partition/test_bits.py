"""Where a plan promises the bits of the original function: on one node, and DLRM cut by layers.

With Adam, losses and parameters of DLRM by layers are equal to the bit, and so is its state but for one number: XLA
fuses the sum that is the gradient of the last bias, a single entry, with the arithmetic of its moments, and rounds
once less. Where the cut is between the two, the moments of that entry are off by their last bit.
"""

import jax
import nets
import numpy as np
import pytest
from marks import slow

from dct_jax.partition import Nodes


def results(net, optimizer, made, steps=5):
  """(what is told and parameters, state) of the original, and of the plan."""
  for run in (nets.step(net, optimizer), made.simulate):
    told, params, state = nets.train(run, net, optimizer, steps)
    yield (told, params), state


def assert_same_bits(want, got):
  assert jax.tree.structure(want) == jax.tree.structure(got)
  for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('net, optimizer', [
    ('mlp', 'adam'), ('resnet', 'adagrad'), ('transformer', 'sgd'),
    *slow(*((n, o) for n in ('dlrm', 'mlp', 'resnet', 'transformer', 'tables') for o in nets.OPTIMIZERS))])
def test_a_plan_of_one_node(net, optimizer):
  net, optimizer = getattr(nets, net)(), nets.OPTIMIZERS[optimizer]
  made = nets.plan(net, optimizer, Nodes())
  assert list(made.programs) == ['trainer'] and len(made.programs['trainer'].steps) == 1
  assert_same_bits(*results(net, optimizer, made))


@pytest.mark.parametrize('optimizer, servers, method', [
    ('sgd', 3, 'greedy'), ('adagrad', 6, 'turns'), ('adam', 2, 'turns'),
    *slow(*((o, k, m) for o in nets.OPTIMIZERS for k in range(1, 7) for m in ('greedy', 'rules', 'turns')))])
def test_dlrm_by_layers(optimizer, servers, method):
  name, optimizer, net = optimizer, nets.OPTIMIZERS[optimizer], nets.dlrm()
  made = (nets.dealt(net, optimizer, servers) if method == 'turns' else
          nets.plan(net, optimizer, Nodes(group=servers), method=method))
  assert len(made.programs) > 1
  (want, state), (got, other) = results(net, optimizer, made)
  assert_same_bits(want, got)
  if name != 'adam':
    assert_same_bits(state, other)
  different = [a.size for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True) if (a != b).any()]
  assert set(different) <= {1} and len(different) <= 2  # both moments of the last bias
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state, other)
