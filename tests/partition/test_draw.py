"""Pictures of plans: well formed, complete, and nothing lies over anything else."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import optax
import pytest

from dct_jax import partition
from dct_jax.partition import draw, ready

SVG = '{http://www.w3.org/2000/svg}'


def planned(net, **nodes):
  return partition.plan(net.loss, net.optimizer, net.params, *net.batch, nodes=partition.Nodes(**nodes),
                        machine=partition.Machine(rate=1.25e8), seconds=0.2)


PLANS = {
    'dlrm': lambda: planned(ready.dlrm(), group=3),
    'tables': lambda: planned(ready.dlrm(rows=50), group=2, sparse=2),
    'two_tables': lambda: planned(ready.dlrm(rows=50, tables=2), group=1, sparse=1),
    'mlp': lambda: planned(ready.mlp(batch=8, width=16), group=8),
    'transformer': lambda: planned(ready.transformer(layers=1, batch=2, length=4, width=8, hidden=16, vocabulary=20),
                                   group=3),
    'one_node': lambda: planned(ready.mlp(batch=8, width=16, layers=2)),
}


@pytest.fixture(scope='module', params=PLANS)
def picture(request):
  plan = PLANS[request.param]()
  return plan, ElementTree.fromstring(draw.svg(plan))


def boxes(root):
  """(x, y, width, height, fill) of boxes of blocks."""
  found = [r for r in root.iter(f'{SVG}rect') if r.get('height') == str(draw.HEIGHT)]
  return [(*(float(r.get(k)) for k in ('x', 'y', 'width', 'height')), r.get('fill')) for r in found]


def words(root):
  return [t.text for t in root.iter(f'{SVG}text')]


def test_boxes_are_apart_and_inside(picture):
  _, root = picture
  _, _, width, height = map(float, root.get('viewBox').split())
  found = boxes(root)
  for a, b in itertools.combinations(found, 2):
    assert a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1], (a, b)
  assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h, _ in found)


def test_every_block_is_in_a_box_of_its_node(picture):
  plan, root = picture
  groups = [g for g in root.iter(f'{SVG}g') if g.find(f'{SVG}rect') is not None and g.find(f'{SVG}title') is not None]
  told = {tuple(g.find(f'{SVG}title').text.split('; ')): g.find(f'{SVG}rect').get('fill') for g in groups}
  for name, fill in told.items():
    assert fill == draw._colour(plan, plan.nodes.names.index(name[0]))[0]
  shown = {(t[0], name) for t in told for name in t[1:]}
  placed = zip(plan.blocks.blocks, plan.at, strict=True)
  layers = {(plan.nodes.names[n], b.name) for b, n in placed if b.kind == 'layer'}
  assert layers <= shown
  assert sum(len(box.blocks) for box in draw._boxes(plan)) == len(plan.blocks.blocks)


def test_forward_goes_from_left_to_right():
  plan = PLANS['dlrm']()
  found = draw._boxes(plan)
  draw._lay_out(found, 10_000)
  place = {plan.blocks.blocks[b].name: box.x for box in found for b in box.blocks}
  order = [place[name] for name in (*(f'bottom{i}' for i in range(1, 5)), *(f'top{i}' for i in range(1, 5)))]
  assert order == sorted(set(order))
  batch, loss = next(b for b in found if not b.blocks), found[-1]
  assert batch.x < order[0] and loss.x > order[-1]
  assert any(plan.blocks.blocks[b].has_loss for b in loss.blocks)


def test_layers_of_a_module_are_a_panel():
  said = words(ElementTree.fromstring(draw.svg(PLANS['transformer']())))
  assert 'enc1' in said and 'dec1' in said and 'expand' in said
  assert not any(text.startswith('enc1/') for text in said)


def test_tables_that_are_alike_are_one_box():
  said = ' '.join(words(ElementTree.fromstring(draw.svg(PLANS['tables']()))))
  assert said.count('13 tables') == 2
  few = words(ElementTree.fromstring(draw.svg(PLANS['two_tables']())))
  assert {'table1', 'table2'} <= set(few)


def test_arrows_have_the_bytes_that_cross():
  def loss(params, x):
    return jnp.mean(jnp.tanh(x @ params['a']['w']) @ params['b']['w'])

  params = {'a': {'w': jnp.ones((2, 250))}, 'b': {'w': jnp.ones((250, 3))}}
  rule = [partition.named('a', 'group0'), partition.named('b', 'group1')]
  plan = partition.plan(loss, optax.sgd(0.1), params, jnp.ones((8, 2)), nodes=partition.Nodes(group=2), rule=rule,
                        codec=partition.Codecs('exact', 'bfloat16'))
  said = words(ElementTree.fromstring(draw.svg(plan)))
  assert '8 / 4 KB' in said  # float32 forward, bfloat16 back
  assert '64 B' in said  # the batch


def test_empty_batches_can_be_drawn():
  net = ready.mlp(batch=1, width=16, layers=2)
  nothing = tuple(jax.ShapeDtypeStruct((0, *x.shape[1:]), x.dtype) for x in net.batch)
  root = ElementTree.fromstring(draw.svg(planned(net._replace(batch=nothing), group=1)))
  assert len(boxes(root)) > 1


def test_idle_servers_are_in_the_legend():
  said = ' '.join(words(ElementTree.fromstring(draw.svg(planned(ready.mlp(batch=8, width=16, layers=2), group=4)))))
  assert 'group3: idle' in said


def test_names_are_escaped():
  params = {'a<b>&c': {'w': jax.ShapeDtypeStruct((2, 2), jnp.float32)}}
  net = ready.Net(lambda p, x: jnp.mean(x @ p['a<b>&c']['w']), optax.sgd(0.1), params, (jnp.ones((4, 2)),))
  assert 'a<b>&c' in words(ElementTree.fromstring(draw.svg(planned(net, group=1))))


def test_long_names_keep_both_ends():
  assert draw._short('short') == 'short'
  long = draw._short('attention/with/a/long/path/query_key_value')
  assert len(long) * draw.LETTER <= draw.BOX and re.fullmatch(r'attention.*….*key_value', long)
