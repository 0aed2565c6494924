"""Pictures can be read: a single point is seen, axes have plain numbers and units, legends cover nothing."""

import importlib.util
import itertools
import pathlib
import sys

import numpy as np
import pytest
from absl import flags

from dct_jax.train import pictures, report

pytest.importorskip('matplotlib')
from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def drawn(monkeypatch):
  """All figures that are saved."""
  found = []
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **named: found.append(figure))
  return found


@pytest.fixture
def script(monkeypatch):
  """path -> a script as a module. Scripts have flags of the same names: those of others are put aside meanwhile."""
  aside = {name: flags.FLAGS[name] for name in flags.FLAGS
           if not (flags.FLAGS.find_module_defining_flag(name) or '').startswith('absl')}
  flags.FLAGS.remove_flag_values(aside)
  kept, modules = set(flags.FLAGS), set(sys.modules)

  def load(path):
    monkeypatch.syspath_prepend((ROOT / path).parent)
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    flags.FLAGS.mark_as_parsed()
    return module

  yield load
  flags.FLAGS.remove_flag_values(set(flags.FLAGS) - kept)
  for name, flag in aside.items():
    flags.FLAGS[name] = flag
  for name in set(sys.modules) - modules:
    file = pathlib.Path(getattr(sys.modules[name], '__file__', None) or '')
    if {ROOT / 'experiments', ROOT / 'benchmarks'} & set(file.parents):
      del sys.modules[name]


def check(figure):
  """What holds for all pictures; returns the texts of the legend."""
  figure.draw_without_rendering()
  boxes = [panel.get_window_extent() for panel in figure.axes if panel.axison]
  legends = figure.legends + [panel.get_legend() for panel in figure.axes if panel.get_legend()]
  for legend, box in itertools.product(legends, boxes):
    assert not legend.get_window_extent().overlaps(box), 'a legend covers curves'
  for panel in (panel for panel in figure.axes if panel.axison):
    assert any(other.get_xlabel() for other in panel.get_shared_x_axes().get_siblings(panel)), 'an axis without a label'
    ticks = [tick.get_text() for tick in (*panel.get_xticklabels(which='both'), *panel.get_yticklabels(which='both'))]
    assert not [text for text in ticks if '$' in text], 'powers where numbers do'
    assert len([text for text in ticks if text]) >= 2
  return [text.get_text() for legend in legends for text in legend.get_texts()]


def lines(figure):
  return [line for panel in figure.axes for line in panel.lines]


def test_a_single_point_is_seen_and_many_are_a_line():
  assert pictures.points([1.0])['marker'] == 'o'
  assert pictures.points(range(10_000)) == {}


@pytest.mark.parametrize(('limits', 'texts'), [
    ((0.03, 2e3), ['0.1', '1', '10', '100', '1,000']), ((0.3, 16), ['0.5', '1', '2', '5', '10']),
    ((140, 280), ['150', '175', '200', '225', '250', '275'])])
def test_ticks_are_plain_numbers(limits, texts):
  figure = Figure()
  panel = figure.subplots()
  panel.set(xscale='log', xlim=limits)
  pictures.plain_ticks(panel)
  figure.draw_without_rendering()
  ticks = panel.xaxis.get_major_ticks()
  inside = [tick.label1.get_text() for tick in ticks if limits[0] <= tick.get_loc() <= limits[1]]
  assert inside == texts
  assert not any(tick.label1.get_text() for tick in panel.xaxis.get_minor_ticks())


def test_loss_of_a_run_with_one_evaluation(drawn):
  line = {'step': 10, 'eval/train_loss': 0.5, 'total_sent_bytes': 3e6}
  report.plot({'dense': [line], 'dct': [line | {'total_sent_bytes': 3e4}]}, 'a.png')
  assert check(drawn[0]) == ['dense', 'dct']
  assert all(line.get_marker() == 'o' for line in lines(drawn[0]))
  assert drawn[0].axes[1].get_xlabel().endswith('sent by a worker')


def test_figures_of_3lc(drawn, script, monkeypatch):
  figures = script('experiments/shared/resnet/figures.py')
  log = lambda steps: [{'step': steps, 'loss': 2.0, 'eval/test_accuracy': 0.5}]
  designs = ['float32', 'int8', 'ternary', '3lc']
  runs = {(d, s): log(s) for d in designs for s in (500, 2000)}
  times = {'10mbit': {'float32': 0.4, '3lc': 0.01}, '1gbit': {'int8': 0.03, '3lc': 0.01, 'float32': 0.02}}
  figures.figure('a.png', 'time', 2, figures.draw_times(runs, times, designs))
  assert set(check(drawn[0])) == {'float32', '3lc', 'int8'}
  for panel in drawn[0].axes:  # one legend for all panels, so that a name has one colour
    assert {line.get_label(): line.get_color() for line in panel.lines}['3lc'] == 'C3'
  figures.figure('b.png', 'runs', 2, figures.draw_runtime({d: log(20) for d in designs}))
  figures.figure('c.png', 'bits', 1, figures.draw_bits({'3lc': ([20], [1.5], [1.6])}))
  for figure in drawn[1:]:
    check(figure)
    assert all(line.get_marker() == 'o' for line in lines(figure))
  assert drawn[2].axes[0].get_ylabel() == 'encoded bits a value'


def test_thresholds_of_the_dct_paper(drawn, script, tmp_path):
  module = script('experiments/dlrm_figures.py')
  steps = np.arange(1, 301)
  module.watched = lambda workdir, name, evaluation, **changes: {
      'step': steps, 'top1/0': 1e-3 / steps, 'top1/1': 2e-3 / steps,
      **{f'{place}/{s}': 1 / steps for place in module.PLACES for s in (0.75, 0.9, 0.95)}}
  module.save(tmp_path, 2, module.figure2, panels=1)
  module.save(tmp_path, 5, module.figure5, panels=2)
  assert '75.0%, mean of 100 steps' in check(drawn[0]) and '95%, DCT-MP' in check(drawn[1])


def test_perplexities(drawn, script):
  module = script('experiments/lstm_tables.py')
  module.draw({name: [{'step': 5, 'eval/valid_perplexity': 141.0}] for name in ('dense', 'S2, lambda 1')}, 'a.png')
  assert check(drawn[0]) == ['dense', 'S2, lambda 1']


def test_the_picture_of_collectives_says_what_it_shows(drawn, script, tmp_path):
  module = script('benchmarks/collectives.py')
  rows = [{'kind': 'random', 'density': d, 'auto': 'dsar', 'times': {n: [d, 2 * d] for n in module.CONTENDERS}}
          for d in (1e-5, 1e-2)]
  module.draw([{'setting': '4 hosts, 100mbit', 'rows': rows}], tmp_path / 'a.png')
  assert set(check(drawn[0])) == {*module.CONTENDERS, 'auto'}
  assert '16,777,216 float32' in drawn[0].get_suptitle() and 'bands' in drawn[0].get_suptitle()


def test_pictures_are_drawn_from_results(drawn, script):
  redraw = script('docs/redraw.py')
  redraw.time_to_accuracy('a.png')
  redraw.time_of_collectives('b.png')
  assert check(drawn[0])[0] == 'float32' and {'psum', 'dense', 'auto'} < set(check(drawn[1]))
  slow, *_ = drawn[0].axes
  assert slow.lines[0].get_xydata()[-1] == pytest.approx([2000 * 0.450 / 60, 71.66])  # 450 ms a step at 10 Mbit
  assert drawn[1].axes[0].lines[0].get_ydata()[0] == 8.95  # psum, as the table has it


def test_every_colour_of_the_timeline_is_in_the_legend(drawn, script, tmp_path):
  module = script('benchmarks/overlap.py')
  span = lambda channels: {'steps': [(0.0, 0.3)], 'exchanges': [(c, 0.1, 0.2) for c in channels]}
  module.draw({'blocking': span([0]), '4 buckets': span([0, 1, 2, 3])}, tmp_path / 'a.png')
  assert check(drawn[0]) == ['step', 'exchange of all layers', *(f'exchange of bucket {i}' for i in range(4))]
  colours = [bar.get_facecolor() for panel in drawn[0].axes for bar in panel.patches]
  assert len(set(colours)) == 6


def test_the_picture_of_s2(drawn, script, tmp_path):
  module = script('benchmarks/s2.py')
  results = [{'setting': f'{p}x100mbit', 'workers': p,
              'rows': [{'load': 'words', 'times': {'all-gather': [0.1], 'S2, 2': [0.2]}}]} for p in (2, 8)]
  module.draw(results, [{'dense': 5e6, 'S2': 1e5}, {'dense': 5e7, 'S2': 2e6}], (2, 1024), tmp_path / 'a.png')
  assert check(drawn[0]) == ['all-gather', 'S2, 2', 'dense', 'S2']
