"""A directory belongs to one run at a time."""

import os
import signal
import subprocess
import sys

import pytest

from dct_jax.train import Checkpoints, claims

HOLD = '''
import sys, time
from dct_jax.train import claims
claims.claim(sys.argv[1])
print('mine', flush=True)
time.sleep(60)
'''


def test_a_second_run_is_refused_while_the_first_one_lives(tmp_path):
  with subprocess.Popen([sys.executable, '-c', HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
    assert first.stdout.readline() == 'mine\n'
    with pytest.raises(ValueError, match=f'belongs to a run that is still at work .process {first.pid} of'):
      claims.claim(tmp_path)
    with pytest.raises(ValueError, match='still at work'):
      Checkpoints(tmp_path, {}).claim()
    first.send_signal(signal.SIGKILL)  # no chance to clean up
  assert claims.claim(tmp_path) == tmp_path.resolve() == claims.claim(tmp_path)
  assert str(os.getpid()) in (tmp_path / claims.NAME).read_text()


def test_a_run_of_this_process_counts_too(tmp_path):
  with claims.alone(tmp_path), pytest.raises(ValueError, match='of this process'), claims.alone(tmp_path):
    pass
  with claims.alone(tmp_path / 'new') as place:
    assert place.is_dir()
  with claims.alone(tmp_path):
    pass
