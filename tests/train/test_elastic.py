"""Runs that go on when workers fail, stay away and come back."""

import io
import os
import pathlib
import signal
import threading
import time

import commands
import program
import pytest

from dct_jax.commands import WRONG
from dct_jax.train import elastic, launch
from dct_jax.train.elastic import Ended
from dct_jax.train.metrics import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = str(ROOT / 'tests/train/program.py')


class Told(elastic.Roster):
  """A roster with a clock of ours, which remembers what it has said."""

  def __init__(self, *args, **kwargs):
    self.now, self.said, self.down = 0.0, [], set()
    super().__init__(*args, **kwargs, say=self.said.append, clock=lambda: self.now,
                     reachable=lambda worker: worker not in self.down)


def failed(worker, seconds=1000.0, code=1):
  return Ended(code, worker, f'exit code {code}', seconds)


def test_the_story_of_a_worker_that_stays_away_and_comes_back():
  roster = Told(4, 5, 2)
  roster.begin()
  assert roster.goes_on(failed(2)) and roster.group() == [0, 1, 2, 3]
  assert roster.goes_on(failed(2, 3.0)) and roster.group() == [0, 1, 3]
  assert not roster.due()
  roster.now = 61
  assert roster.due() and roster.goes_on(Ended(143, parted=True)) and roster.group() == [0, 1, 2, 3]
  assert not roster.goes_on(Ended(0))
  assert roster.said == [
      '4 workers begin',
      'worker 2 failed after 1000 s, with exit code 1; 4 workers go on from the last checkpoint (restart 1 of 5)',
      'worker 2 failed again at once, with exit code 1, and stays away; 3 workers go on from the last checkpoint '
      '(restart 2 of 5)',
      'worker 2 can be started again: 3 workers have saved a checkpoint, 4 workers go on from it',
      'done, with 4 workers, after 2 restarts']


def test_workers_that_do_not_last_are_tried_ever_more_seldom_and_for_nothing():
  roster = Told(2, 2, 1, retry=10.0)
  assert roster.goes_on(failed(1)) and roster.goes_on(failed(1, 1.0)) and roster.failures == 2
  for wait in (10, 20, 40, 80, 160, 160):
    roster.now += wait - 1
    assert not roster.due()
    roster.now += 1
    assert roster.due() and roster.goes_on(Ended(143, parted=True)) and roster.group() == [0, 1]
    assert roster.goes_on(failed(1, 1.0)) and roster.group() == [0]
  assert roster.failures == 2
  assert not roster.goes_on(failed(0))  # and that is one too many


def test_a_host_that_starts_nothing_is_away_at_once_until_it_does():
  roster = Told(3, 9, 1)
  roster.down = {0}
  assert roster.goes_on(failed(0)) and roster.group() == [1, 2]
  for roster.now in (100, 200, 300):
    assert not roster.due()
  roster.down, roster.now = set(), 359
  assert not roster.due()
  roster.now = 361
  assert roster.due()
  assert roster.goes_on(Ended(WRONG, 1, 'no such file', 0.1, started=False)) and roster.group() == [2]


def test_failures_of_different_workers_are_not_of_one():
  roster = Told(3, 9, 1)
  for worker in (0, 1, 0, 2):
    assert roster.goes_on(failed(worker, 5.0)) and len(roster.group()) == 3


def test_groups_are_of_so_many():
  roster = Told(6, 9, 2, multiple=2)
  assert roster.goes_on(failed(5)) and roster.goes_on(failed(5, 1.0)) and roster.group() == [0, 1, 2, 3]
  assert roster.goes_on(failed(0)) and roster.goes_on(failed(0, 1.0)) and roster.group() == [1, 2, 3, 4]
  roster.down, roster.now = {0}, 100
  assert not roster.due()  # five are no more than four
  roster.down, roster.now = set(), 500
  assert roster.due() and roster.goes_on(Ended(143, parted=True)) and roster.group() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(('roster', 'end', 'why'), [
    (Told(2, 0, 2), failed(1), None),
    (Told(2, 3, 2), Ended(130), None),
    (Told(2, 3, 2), Ended(124), None)])
def test_what_ends_all(roster, end, why):
  assert not roster.goes_on(end)
  assert [why in line for line in roster.said] == ([True] if why else [])


def test_wrong_arguments_do_not_get_better_but_a_full_disk_may():
  roster = Told(2, 9, 2)
  assert roster.goes_on(failed(1, 1.0, WRONG)) and roster.goes_on(failed(0, 100.0, WRONG))
  assert roster.goes_on(failed(1, 1.0, WRONG)) and not roster.goes_on(failed(0, 1.0, WRONG))
  assert roster.said[-1].endswith('all end here')


def test_least():
  roster = Told(3, 4, 2)
  for worker, left in ((1, [0, 1, 2]), (1, [0, 2]), (0, [0, 2]), (0, [0, 2])):
    assert roster.goes_on(failed(worker, 1.0)) and roster.group() == left
  assert not roster.goes_on(failed(0))
  assert roster.said[-1].endswith('all end here: there were 4 restarts already')


@pytest.mark.parametrize('bad', [(2, -1, 1), (2, 1, 3), (2, 1, 0), (2, 1, 1, 0), (2, 1, 1, 1, 0.0)])
def test_bad_arguments_are_refused(bad):
  with pytest.raises(ValueError, match='got'):
    elastic.Roster(*bad)


def shell(script, processes, **kwargs):
  output = io.StringIO()
  code = launch.launch(['sh', '-c', script], processes, output=output, grace=0.5, **kwargs)
  return code, [line for line in output.getvalue().splitlines() if line.startswith(('elastic', '['))]


def test_a_worker_is_started_again_with_all_others():
  script = 'echo $DCT_JAX_STARTS $DCT_JAX_PROCESS_ID $DCT_JAX_NUM_PROCESSES; test $DCT_JAX_STARTS$DCT_JAX_WORKER != 01'
  pids = []
  code, lines = shell(script, 2, failures=launch.Elastic(1), started=pids.append)
  assert code == 0 and lines[-1] == 'elastic: done, with 2 workers, after 1 restart'
  assert {'[0] 1 0 2', '[1] 1 1 2'} < set(lines)
  assert [set(group) for group in pids] == [{0, 1}] * 2
  code, lines = shell('exit 3', 1, failures=launch.Elastic(2, 1))
  assert code == 3 and 'all end here' in lines[-1]


def test_the_others_go_on_and_part_for_one_that_is_back(tmp_path):
  """Worker 1 fails as long as a file is there; others end by themselves when all three are back."""
  (tmp_path / 'down').touch()
  script = f"""
    cd {tmp_path}; trap 'touch parted; exit 143' TERM
    test -e down -a $DCT_JAX_WORKER = 1 && exit 7
    test $DCT_JAX_NUM_PROCESSES = 2 && rm -f down
    while test $DCT_JAX_NUM_PROCESSES != 3 -o -e down; do sleep 0.05; done; echo $DCT_JAX_COORDINATOR"""
  code, lines = shell(script, 3, failures=launch.Elastic(5, 2, retry=0.5), coordinator=lambda worker: f'host{worker}:1',
                      timeout=60)
  story = [line.removeprefix('elastic: ') for line in lines if line.startswith('elastic')]
  assert code == 0 and (tmp_path / 'parted').exists(), lines
  assert [line.split(',')[0].split(':')[0] for line in story] == [
      '3 workers begin', 'worker 1 failed after 0 s', 'worker 1 failed again at once',
      'worker 1 can be started again', 'done']
  assert lines.count('[2] host0:1') == 1


def test_hosts_that_cannot_start_anything():
  prefix = lambda worker: ('/no/such/program',) if worker == 0 else ()
  code, lines = shell('echo $DCT_JAX_WORKER of $DCT_JAX_NUM_PROCESSES', 2, failures=launch.Elastic(3, 1), prefix=prefix)
  assert code == 0 and '[1] 1 of 1' in lines
  assert 'worker 0 failed again at once, with [Errno 2]' in ''.join(lines)
  with pytest.raises(OSError, match='no/such'):
    shell('true', 2, prefix=prefix)


def after(directory, step):
  """Waits for a step of a run."""
  end = time.monotonic() + 120
  while not any(line['step'] >= step for line in commands.lines_of(directory)):
    assert time.monotonic() < end, f'step {step} does not come'
    time.sleep(0.05)


@pytest.mark.slow
def test_a_worker_killed_for_good_and_later_back(tmp_path):
  """Four workers; the host of one goes away in the middle of the run, and comes back."""
  groups, output = [], io.StringIO()
  prefix = lambda worker: ('sh', '-c', f'test ! -e {tmp_path}/down{worker} && exec "$@"', 'sh')

  def disturb():
    after(tmp_path, 50)
    (tmp_path / 'down2').touch()
    os.killpg(groups[0][2], signal.SIGKILL)
    after(tmp_path, 100)
    (tmp_path / 'down2').unlink()

  hand = threading.Thread(target=disturb, daemon=True)
  hand.start()
  code = launch.launch(['python', PROGRAM, 'elastic', str(tmp_path)], 4, timeout=240, prefix=prefix, output=output,
                       environment={'PYTHONPATH': str(ROOT)}, started=groups.append,
                       failures=launch.Elastic(3, 2, retry=1.0))
  story = [line for line in output.getvalue().splitlines() if line.startswith('elastic')]
  assert code == 0, output.getvalue()
  assert [sorted(group) for group in groups] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]] and len(story) <= 5, story
  program.elastic(program.Program(4), tmp_path / 'undisturbed')
  mine, theirs = read_metrics(tmp_path), read_metrics(tmp_path / 'undisturbed')
  assert [line['step'] for line in mine] == [line['step'] for line in theirs] == list(range(1, 201))
  late = lambda lines: sum(line['loss'] for line in lines[-40:]) / 40
  assert [line['loss'] for line in mine[:40]] == pytest.approx([line['loss'] for line in theirs[:40]], rel=1e-5)
  assert late(mine) == pytest.approx(late(theirs), rel=0.1) and late(mine) < mine[0]['loss'] / 2
