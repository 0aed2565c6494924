"""DLRM on click data: what all methods share, and how each one differs."""

import ml_collections

import dct_jax
from dct_jax import tables
from dct_jax.boundaries import Cut
from dct_jax.models import dlrm
from dct_jax.partition import ready
from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.data = ''  # a Criteo TSV, a directory with Frappe's files, or the synthetic set
  config.test_data = ''  # another file of the same format to test on
  config.test_share = 1 / 7  # of the rows of a Criteo TSV, from its end: tested on, not trained on. Kaggle's last day
  config.cache = 'runs/cache'  # where a prepared TSV is kept
  config.rows = 200_000  # of the synthetic set, for training
  config.test_rows = 40_000
  config.workers = 4
  config.batch = 128  # of all workers together
  config.steps = 1500  # about one pass over the synthetic set
  config.bottom = (512, 256, 64, 16)
  config.top = (512, 256, 128, 1)
  config.learning_rate = 0.1
  config.row_optimizer = 'adagrad'  # plain SGD, as the public DLRM has it, takes many more passes here
  config.row_learning_rate = 0.05  # 0: as learning_rate
  config.row_codec = 'float32'
  config.placement = 'dealt'
  config.row_sum = 'gather'  # of replicated tables; the names are in experiments/shared/sparse.py
  config.lam = 1.0  # of s2: numbers of the sketch for each entry
  config.lam_of = 'worker'
  config.sketch_rows = 1
  config.seed = 0
  config.dp_sparsity = 0.0  # of gradients; 0 sends them dense
  config.lifespan = 1000
  # Not in the paper: thresholds follow their counts, so that messages keep their size. 0 is as in the paper.
  config.tracking = 0.1
  config.selection = 'select'
  config.value_codec = 'float16'
  config.mp_sparsity = 0.0  # of activations at the splits
  config.splits = ''  # where the model is cut, by names of models.dlrm.split_names, with commas
  config.masks = 'one'
  # 1: cuts are inside of every worker, and what would cross them is counted. One more than there are splits:
  # every section of the model is a process or device of its own, and activations travel.
  config.stages = 1
  config.microbatches = 1  # parts of a worker's examples that are on their way through the stages at once
  config.activation_codec = 'float32'
  config.evaluate_every = 250
  config.checkpoint_every = 500
  config.evaluated = 40_000  # rows of either set that losses are of
  return config


TWO, THREE = 'bottom2', 'bottom2,top2'  # workers of the model: one cut, two cuts
VARIANTS = {
    'baseline': {},
    'dp': {'dp_sparsity': 0.99},
    'mp2': {'splits': TWO, 'mp_sparsity': 0.9},
    'mp3': {'splits': THREE, 'mp_sparsity': 0.9},
    'hybrid': {'dp_sparsity': 0.99, 'splits': THREE, 'mp_sparsity': 0.9},
    # The paper warns of it: activations and gradients each choose their own largest entries.
    'naive': {'splits': THREE, 'mp_sparsity': 0.9, 'masks': 'apart'},
    # In the form of the paper's production model: many layers to cut between. Table 5 of dlrm_tables.py.
    'wide': {'bottom': (512,) * 6 + (16,), 'top': (512,) * 6 + (1,), 'workers': 2, 'learning_rate': 0.3,
             'steps': 1000},
    'dp_paper': {'dp_sparsity': 0.99, 'tracking': 0.0, 'value_codec': 'float32'},
}


def get_config(variant: str = 'hybrid'):
  return experiment.choose(base(), VARIANTS, variant)


def check(config):
  """Raises ValueError for what could not be built after the data is there."""
  experiment.even_batch(config)
  parts = dlrm.sections(config.splits, config.bottom, config.top)
  if config.stages > 1 and len(parts) != config.stages:
    raise ValueError(f'--stages={config.stages} wants {config.stages - 1} splits, got --splits={config.splits}')
  if config.stages > 1 and config.masks != 'one':
    raise ValueError(f"stages have one mask for both passes, got --masks={config.masks}")
  Cut(config.mp_sparsity, config.activation_codec).check()
  dct_jax.dct_dp(config.dp_sparsity, config.lifespan, tracking=config.tracking, selection=config.selection,
                 value_codec=config.value_codec)
  tables.make_optimizer(config.row_optimizer, config.row_learning_rate or config.learning_rate)


def get_net(variant: str = 'baseline', batch: int = 0):
  """What a worker trains, for `python -m dct_jax.partition plan`; rows come with the batch."""
  config = get_config(variant)
  return ready.dlrm(batch=batch or config.batch // config.workers, bottom=config.bottom, top=config.top)
