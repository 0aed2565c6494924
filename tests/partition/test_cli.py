"""`python -m dct_jax.partition plan` as a user calls it."""

import pathlib
import runpy
import xml.etree.ElementTree as ElementTree

import pytest

from dct_jax import partition
from dct_jax.partition import __main__ as command
from dct_jax.partition import files, ready

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ['--batch=8', '--layers=3', '--width=16', '--seconds=0.5', '--splits=none']
FILE = """
import jax.numpy as jnp, optax
from dct_jax import partition
from dct_jax.partition import ready

def get_net(variant='small', batch=4):
  width = {'small': 4, 'large': 64}[variant]
  params = {name: {'w': jnp.ones((width, width))} for name in 'ab'}
  loss = lambda p, x: jnp.mean(jnp.tanh(x @ p['a']['w']) @ p['b']['w'])
  return ready.Net(loss, optax.sgd(0.1), params, (jnp.ones((batch, width)),), rule=[partition.named('b', 'group1')])
"""


@pytest.fixture
def config(tmp_path):
  (tmp_path / 'net.py').write_text(FILE)
  return str(tmp_path / 'net.py')


def test_a_plan_is_printed_saved_and_drawn(tmp_path, capsys):
  out, svg = tmp_path / 'plan.json', tmp_path / 'plan.svg'
  assert command.main(['plan', 'dlrm', '--group=3', '--trainers=3', '--batch=128', '--forward=int8',
                       '--backward=bfloat16', '--rate=1gbit', '--memory=8GB', '--method=greedy', '--splits=none',
                       f'--out={out}', f'--svg={svg}']) == 0
  said = capsys.readouterr().out
  assert 'is the bottleneck' in said and 'critical path' in said and 'int8 forward and bfloat16 back' in said
  assert [line.split()[0] for line in said.splitlines()[2:7]] == ['node', 'trainer', 'group0', 'group1', 'group2']
  net = ready.dlrm(batch=128)
  graph = partition.train_net(net.loss, net.optimizer, net.params, *net.batch)
  plan = files.load(out, graph, partition.Nodes(group=3, trainers=3))
  assert plan.estimate.codec == partition.Codecs('int8', 'bfloat16')
  assert plan.estimate.machine.rate == 1.25e8 and plan.estimate.machine.memory == 8e9
  assert ElementTree.fromstring(svg.read_text()).tag.endswith('svg')


def test_sparse_servers_hold_tables(tmp_path):
  out = tmp_path / 'plan.json'
  assert command.main(['plan', 'dlrm', '--group=1', '--sparse=2', '--rows=20', '--splits=none', f'--out={out}']) == 0
  placed = files.read(out)['placement']
  assert {placed[f'table{i}'] for i in range(1, 27)} == {'sparse0', 'sparse1'}


@pytest.mark.parametrize('method', partition.plan_graph.__globals__['METHODS'])
def test_methods(method, capsys):
  assert command.main(['plan', 'mlp', '--group=2', f'--method={method}', *SMALL]) == 0
  assert ('best placement' in capsys.readouterr().out) == (method == 'exact')


def test_few_bits(tmp_path):
  out = tmp_path / 'plan.json'
  assert command.main(['plan', 'mlp', '--group=2', '--forward=int4', '--backward=sparse:0.75', '--feedback=100',
                       '--fc=int8', f'--out={out}', *SMALL]) == 0
  assert files.read(out)['codecs'] == {'forward': 'int4', 'backward': 'sparse:0.75', 'feedback': 100}


def test_idle_servers_are_said(capsys):
  assert command.main(['plan', 'mlp', '--group=5', *SMALL]) == 0
  assert 'group4 is idle' in capsys.readouterr().out


def test_a_file(config, capsys):
  assert command.main(['plan', config, '--group=2', '--splits=none']) == 0
  small = capsys.readouterr().out
  assert command.main(['plan', f'{config}:large', '--group=2', '--batch=16', '--splits=none']) == 0
  large = capsys.readouterr().out
  assert '64 B' in small and '16.4 KB' in large  # weights of a layer


@pytest.mark.parametrize('name', ['dlrm_criteo.py:wide', 'mlp_mnist.py', 'transformer_iwslt.py:hybrid'])
def test_configurations_of_experiments_have_nets(name, monkeypatch):
  path, _, variant = name.partition(':')
  net = runpy.run_path(str(ROOT / 'configs' / path))['get_net'](*[variant] if variant else [])
  assert isinstance(net, ready.Net)


def test_a_machine_is_read_from_its_file(tmp_path, capsys):
  from dct_jax.partition import costs
  costs.save(partition.Machine(flop=1.0), tmp_path / 'machine.json')
  assert command.main(['plan', 'mlp', f'--machine={tmp_path / "machine.json"}', *SMALL]) == 0
  assert '(processor)' in capsys.readouterr().out


@pytest.mark.parametrize('arguments, message', [
    (['dlrm', '--rate=fast'], 'rate must look like'),
    (['dlrm', '--memory=8'], 'a size must look like'),
    (['dlrm', '--memory=1KB', '--splits=none'], 'fits no node'),
    (['dlrm', '--group=-1'], 'no negative number'),
    (['dlrm', '--trainers=0'], 'a trainer or more'),
    (['dlrm', '--batch=0'], '--batch must be above 0'),
    (['dlrm', '--layers=3'], "unexpected keyword argument 'layers'"),
    (['dlrm', '--latency=-1'], 'latency'),
    (['nothing'], 'none of dlrm, mlp, transformer'),
    (['nothing.py:x'], 'and no file'),
    (['mlp', '--out=/nowhere/plan.json', *SMALL], '/nowhere'),
    (['mlp', '--machine={bad}', *SMALL], 'costs of a machine'),
    (['{config}', '--layers=3'], "unexpected keyword argument 'layers'"),
    (['{bad}'], 'get_net'),
])
def test_what_is_wrong_is_one_line(arguments, message, config, tmp_path, capsys):
  (tmp_path / 'bad.py').write_text('x = 1')
  given = [a.format(config=config, bad=tmp_path / 'bad.py') for a in arguments]
  assert command.main(['plan', *given]) == 2
  said = capsys.readouterr()
  assert message in said.err and said.err.count('\n') == 1 and 'error: ' in said.err and not said.out


@pytest.mark.parametrize('arguments', [
    [], ['draw'], ['plan'], ['plan', 'dlrm', '--forward=int3'], ['plan', 'dlrm', '--fc=int3'],
    ['plan', 'dlrm', '--backward=sparse:2'], ['plan', 'dlrm', '--group=x'],
    ['plan', 'dlrm', '--method=luck'], ['plan', 'dlrm', '--colour=red'], ['plan', 'dlrm', '--splits=perhaps']])
def test_arguments_that_there_are_not_are_one_line(arguments, capsys):
  with pytest.raises(SystemExit) as end:
    command.main(arguments)
  said = capsys.readouterr().err
  assert end.value.code == 2 and said.count('\n') == 1 and 'error: ' in said


def test_a_net_is_wanted(tmp_path, capsys):
  (tmp_path / 'net.py').write_text('def get_net():\n  return 3')
  assert command.main(['plan', str(tmp_path / 'net.py')]) == 2
  assert 'got int' in capsys.readouterr().err
