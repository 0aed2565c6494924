"""Training on real nodes: on Ray, or on threads of this process."""

import contextlib
import functools
import sys

from dct_jax.partition import ready
from dct_jax.runtime import staleness
from dct_jax.runtime.cluster import Job, Watch, threads
from shared.hierarchical import problem


def net(config):
  """The program, as every node makes it for itself."""
  task = problem.make(config, problem.load(config))
  return ready.Net(task.loss, task.optimizer, task.params, task.batch_of(0))


def batches(config):
  """Its data, as readers make them."""
  return problem.make(config, problem.load(config)).batch_of


def train(config, task, plan, directory):
  """Trains, or goes on where a run in this directory was; returns what came out."""
  job = Job(functools.partial(net, config), functools.partial(batches, config))
  with _view(config, directory) as show:
    watch = Watch(checkpoint=config.checkpoint_every, publish=config.publish_every, show=show)
    options = {'watch': watch, 'resume': True}
    if config.engine == 'ray':
      from dct_jax.runtime.cluster import on_ray  # Ray is an extra
      run = on_ray.train(job, plan, problem.fleet(config), task.batches, directory,
                         address=config.address or None, **options)
    else:
      run = threads.train(job, plan, problem.fleet(config), task.batches, directory, **options)
  counts = {name: found for name, found in run.staleness.items() if found}
  late = sorted(run.losses)[-max(task.batches // 10, 1):]
  return {'batches': task.batches, 'ne': float(task.evaluate(run.model)['ne']),
          'train_loss': sum(run.losses[i] for i in late) / len(late),
          'examples_per_second': config.batch * run.batches_per_second(), 'seconds': run.seconds,
          'staleness': {name.split('/')[-1]: staleness.mean([found]) for name, found in counts.items()}, 'log': run.log}


@contextlib.contextmanager
def _view(config, directory):
  """A table in a terminal, and curves."""
  try:
    from dct_jax.runtime.cluster import view
  except ImportError:
    yield None
    return
  with view.showing(config.batch, terminal=sys.stdout.isatty(), logdir=directory / 'curves') as show:
    yield show
