"""3LC's workload: a ResNet (or a DenseNet) on CIFAR-10, or on small digits, with 32 images a worker.

    python experiments/resnet_cifar.py                                         # no files: a stand-in, depth 8
    python experiments/resnet_cifar.py --data=cifar10/ --method=float32,3lc --multiplier=1.75
    python experiments/resnet_cifar.py --data=cifar10/ --launch=processes      # bytes over TCP
    python experiments/resnet_cifar.py --model=densenet --method=blocks,top16_q4    # sparse gradients
"""

import pathlib

import jax
from absl import app, logging

import dct_jax
from dct_jax import train
from dct_jax.data.images import cifar
from dct_jax.models.batch_stats import follow_first_worker
from dct_jax.train import experiment
from shared import classifiers, sparse
from shared.resnet.designs import has_servers, make_optimizer
from shared.resnet.models import make_model

experiment.define_flags(pathlib.Path(__file__).parents[1] / 'configs/resnet_cifar.py', {
    'data': (str, "Directory of CIFAR-10's .bin files; scikit-learn's digits without it."),
    'model': (str, "Kind of the network: 'resnet' or 'densenet'."),
    'depth': (int, 'Number of layers, 6 n + 2; 0 is 20 for CIFAR, 8 for digits. A densenet has 3 n + 4, or 6 n + 4 '
              'with --bottleneck, and 0 is 22 or 10.'),
    'width': (int, 'Factor by which a resnet has more than 16, 32 and 64 filters.'),
    'growth': (int, 'Number of channels that a layer of a densenet adds.'),
    'bottleneck': (bool, 'Whether a densenet has a 1 x 1 convolution before each of its others.'),
    'stem_stride': (int, 'Stride of the first convolution; 2 is a quarter of the work.'),
    'batch': (int, 'Number of images in a step of each worker.'),
    'learning_rate': (float, 'Learning rate of one worker, which is multiplied by their number; it decays to 1% of '
                      'that with a cosine.'),
    'warmup': (float, 'Share of the steps in which the learning rate grows from 0.'),
    'multiplier': (float, 'Sparsity multiplier of 3LC, in [1, 2).'),
    'pull_multiplier': (float, 'Sparsity multiplier of what comes back from the owners; 0 takes --multiplier.'),
    'sparsity': (float, 'Share of each layer that stays behind with the variant dct.'),
    'lifespan': (int, 'Number of steps for which the variant dct keeps a threshold.'),
    'evaluated': (int, 'Number of rows of either set that losses and accuracies are of.'),
    'evaluate_every': (int, 'Number of steps between two evaluations.'),
    'checkpoint_every': (int, 'Number of steps between two checkpoints.'),
} | sparse.SELECTION_FLAGS)
server_params = jax.jit(dct_jax.server_params)
CHUNK = 1000  # images that are evaluated at once


def load(config):
  """CIFAR-10, or what stands in for it."""
  if config.data:
    return cifar.load(config.data)
  logging.warning('no --data: this is not CIFAR but a stand-in, scikit-learn\'s digits')
  return cifar.digits()


def make_batches(data, config, mesh, start):
  """Batches for the workers of this process, on their devices, from step `start` on."""
  made = cifar.batches(data, config.batch, config.workers, config.seed, start, mine=train.local_workers(mesh),
                       flip=bool(config.data))
  return (train.shard_batch(batch, mesh) for batch in made)


def make_evaluate(measure, data, config, mesh):
  """Losses and accuracies of both sets, in chunks of one size; what does not fill the last one is left out."""
  measure_all, parts = train.make_eval(measure, mesh), {}
  for name, part in data.items():
    rows = min(config.evaluated, len(part['x']))
    size = min(CHUNK, rows) // mesh.size * mesh.size
    parts[name] = [train.share_batch({k: v[i:i + size] for k, v in part.items()}, mesh)
                   for i in range(0, rows - size + 1, size)]

  def evaluate(params, state):  # as in the paper, of the servers' model
    params = server_params(params, state) if has_servers(config) else params
    return {f'{name}_{k}': v / len(chunks) for name, chunks in parts.items()
            for k, v in train.sum_batches(measure_all, params, chunks).items()}

  return evaluate


def make_loss(model):
  """(variables, batch) -> a loss whose gradient takes the moving averages along."""
  def loss_fn(variables, batch):
    logits, new = model.apply(variables, batch['x'], train=True, mutable=['batch_stats'])
    loss = classifiers.cross_entropy(logits, batch['y'])
    return follow_first_worker(loss, variables['batch_stats'], new['batch_stats'], 'data')

  return loss_fn


def train_one(config, workdir):
  """Trains with one method; everything worth keeping is in `workdir` afterwards."""
  model, mesh, data = make_model(config), dct_jax.make_mesh(config.workers), load(config)
  transport = dct_jax.connect(mesh) if jax.process_count() > 1 else None
  tx = make_optimizer(config, transport)

  variables = model.init(jax.random.PRNGKey(config.seed), data['train']['x'][:1])
  variables, state, specs = dct_jax.init(tx, variables, mesh)
  checkpoints = train.Checkpoints(workdir / 'checkpoints', experiment.settings(config), keep=2)
  variables, state, start = experiment.resume(checkpoints, variables, state, specs, mesh)

  step = train.make_step(make_loss(model), tx, mesh, specs)
  batches = make_batches(data['train'], config, mesh, start)
  evaluate = make_evaluate(classifiers.make_measure(model), data, config, mesh)
  with train.MetricsWriter(workdir) as writer:
    train.run(step, variables, state, batches, steps=config.steps, start=start, metrics=writer,
              checkpoints=checkpoints, checkpoint_every=config.checkpoint_every,
              evaluate=evaluate, evaluate_every=config.evaluate_every, show=('test_accuracy',))


if __name__ == '__main__':
  app.run(experiment.main(
      train_one, compare=('float32', 'one_bit', '3lc'), columns=('train_loss', 'test_loss', 'test_accuracy')))
