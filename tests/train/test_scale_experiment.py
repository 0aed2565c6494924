"""The map of scale: its numbers are those of the cost model and of the clock; compression pays on slow lines only."""

import json
import math
import pathlib
import sys

import commands
import pytest

from dct_jax import Costs, partition
from dct_jax.partition import ready

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'experiments'))
from shared.scale import asynchronous, models, speeds, synchronous

SMALL = models.Model(lambda batch: ready.mlp(batch=batch, layers=3, width=32, inputs=16), 8, {})
SLOW, FAST = 1.25e6, 5e10  # bytes a second: 10 Mbit, 400 Gbit
MILLION = models.Model(None, 100, {}, size=1_000_000, fixed=0.18, each=0.5)


def test_exchanges_by_hand():
  """10 nodes, a million coordinates, 99%, a byte takes 1 us, a round 1 ms, an entry 10 ns, a coordinate 0.3 ns."""
  found = synchronous.exchanges(synchronous.Gradient(1_000_000), Costs.of_network(10, 1e6, 1e-3))
  filled = 0.3e-9 * 1e6
  assert found['dense'] == pytest.approx(2 * 1e-3 + 1e-6 * 2 * 0.9 * 4e6 + filled, rel=1e-5)
  message = 10_000 * (16 + math.log2(100) + 1.6) / 8
  assert found['DCT-DP'] == pytest.approx(1e-3 + 1e-6 * 9 * message + 10e-9 * 10 * 10_000 + filled, rel=1e-5)
  assert found['3LC'] == pytest.approx(2e-3 + 1e-6 * 2 * 0.9 * 1e6 * 0.293 / 8, rel=1e-5)
  union = 1e6 * (1 - 0.99 ** 10)
  bitmap = 4 * math.ceil(math.ceil(1e6 / 256) / 32) * 9  # in one round, as it is so small
  sketch = 3e-3 + 1e-6 * (bitmap + 2 * 0.9 * 4 * union / 2) + 10e-9 * (10_000 + union) + filled
  assert found['S2 / union_sum'] == pytest.approx(sketch, rel=1e-5)
  # SSAR_Split_AllGather: entries go to their owners, float32 with an index each, and sums of the union to all.
  encoded = lambda count: count * (32 + math.log2(1e6 / count) + 1.6) / 8
  split = 2e-3 + 1e-6 * (encoded(9000) + 0.9 * encoded(union)) + 10e-9 * 2 * (10_000 + union) + filled
  assert found['SparCML'] == pytest.approx(split, rel=1e-5)


def test_a_step_by_hand():
  """20 nodes of 18 cores make 360 batches; a limit of 180 leaves half a batch to a core, and the update as it is."""
  gradient, site = synchronous.Gradient(MILLION.size), speeds.Site(20, 1e8)
  exchange = synchronous.exchanges(gradient, Costs.of_network(20, 1e8, site.latency))['dense']
  whole, half = (speeds.together(MILLION, site, limits, gradient)['dense']
                 for limits in (speeds.Limits(), speeds.Limits(batches=180)))
  assert whole == pytest.approx(20 * 18 * 100 / (0.5 + 0.01 + exchange))
  assert half == pytest.approx(180 * 100 / (0.25 + 0.01 + exchange))


def test_synchronizations_hold_replicas_up():
  """9 replicas of 4 MB through one server at 1.25 MB/s: 28.8 s for a round, in which a net may take 10 batches."""
  clocked = {(1, 0): 30.0, (5, 5): 7.0}
  free, held = (speeds.apart(MILLION, speeds.Site(10, SLOW), limits, clocked)
                for limits in (speeds.Limits(), speeds.Limits(apart=10)))
  assert free == {'EASGD': 9 * 100 * 30.0, 'HT': 100 * 7.0}
  assert held['EASGD'] == pytest.approx(9 * 100 * 18 * 10 / 28.8)
  assert held['HT'] == free['HT']  # one group has nobody to be synchronized with


@pytest.mark.parametrize('nodes, most, replicas, groups', [(10, 40, 9, 1), (25, 40, 24, 2), (1000, 40, 40, 40),
                                                           (1000, math.inf, 960, 80)])
def test_nodes_are_dealt_out(nodes, most, replicas, groups):
  alone, shape = asynchronous.alone(nodes, most), asynchronous.groups(nodes, most)
  assert (alone.replicas, shape.replicas) == (replicas, groups)
  assert alone.replicas + alone.dense <= nodes
  assert shape.replicas * (shape.trainers + shape.servers) + shape.dense <= nodes


def test_the_clock_of_trainers_alone():
  """Every net has a core, and one batch after another, each as long as the plan says: there are no messages."""
  machine = partition.Machine(call=1e-12)
  small = models.measured(SMALL, machine)
  assert small.size == (16 + 1) * 32 + (32 + 1) * 32 + (32 + 1) * 10
  found = speeds.clocked(small, speeds.Site(4, 1e9, cores=3, machine=machine), [4])
  assert set(found) == {(1, 0), (2, 2)}
  assert found[1, 0] == pytest.approx(3 / (small.fixed + small.each), rel=0.03)  # constants are computed twice


def test_compressed_methods_win_on_slow_lines_and_the_dense_one_on_fast_lines(tmp_path):
  done = commands.run('scale_map', '--models=DLRM', '--nodes=10,25', '--rates=10mbit,400gbit', '--seconds=1',
                      f'--out={tmp_path / "map.json"}', f'--picture={tmp_path / "map.png"}')
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / 'map.json').read_text())
  assert {'command', 'date', 'versions', 'machine', 'settings'} <= set(found) and len(found['cells']) == 8
  few = found['tables']['DLRM_limits']['rows'][0]
  assert few[0] == '10' and few[1].startswith(found['cells'][0]['winner']) and few[2] == 'dense 1'
  for cell in found['cells']:
    fast = cell['rate'] == '400gbit'
    assert (cell['winner'] == 'dense') == fast
    assert cell['factor'] == 1 if fast else cell['factor'] > 20
    every = cell['examples_per_second']
    assert all(every[name] > 5 * every['dense'] for name in ('DCT-DP', 'SparCML', '3LC', 'S2 / union_sum')) != fast
  assert (tmp_path / 'map.png').stat().st_size > 10_000
  assert 'got ResNet' in commands.run('scale_map', '--models=ResNet').stderr
