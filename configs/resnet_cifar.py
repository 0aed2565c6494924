"""3LC's ResNet on CIFAR-10, and a DenseNet: what all methods share, and how each one differs."""

import ml_collections

from dct_jax.train import experiment


def base():
  config = ml_collections.ConfigDict()
  config.data = ''  # a directory with CIFAR-10's .bin files; without, scikit-learn's digits
  config.model = 'resnet'  # or 'densenet', to which depth (of another form) and stem_stride apply, too
  config.depth = 0  # 6 n + 2; 0 is 20 for CIFAR, 8 for digits; 110 in the paper
  config.width = 1
  config.growth = 12  # of a densenet, and whether it has bottlenecks
  config.bottleneck = False
  config.stem_stride = 1  # 2: a quarter of the work, with the same parameters
  config.workers = 4
  config.batch = 32  # images a worker
  config.steps = 400
  # Of one worker, and multiplied by their number; a cosine takes it to 1% of that. The paper's is 0.1 with 10
  # workers and no word of a warm-up; in runs this short, that needs one.
  config.learning_rate = 0.1
  config.warmup = 0.05  # share of the steps in which the learning rate grows from 0; not in the paper
  config.momentum = 0.9
  config.weight_decay = 1e-4  # of kernels alone
  config.seed = 0
  config.compressor = 'float32'  # the names are in experiments/shared/resnet/designs.py
  config.multiplier = 1.0  # sparsity multiplier of 3LC
  config.pull_multiplier = 0.0  # of what comes back; 0: the same, as in the paper
  config.zero_runs = True  # zero-run encoding, of 3LC
  config.local_steps = 1  # gradients of which the sum is exchanged
  config.sparsity = 0.99
  config.lifespan = 1000
  config.keep, config.block = 1 / 32, 256  # of block_top_k
  config.k, config.bucket = 16, 512  # of bucket_top_k
  config.collective = 'all_gather'  # of both; the names are in experiments/shared/sparse.py
  config.lam = 1.0  # of s2: numbers of the sketch for each entry
  config.lam_of = 'worker'
  config.sketch_rows = 1
  config.feed_back = False  # of the sketch's own error
  config.bits = 32  # of dsar
  config.evaluated = 5_000  # rows of either set that the losses are of
  config.evaluate_every = 100
  config.checkpoint_every = 200
  return config


VARIANTS = {
    'float32': {},
    'int8': {'compressor': 'int8'},
    'ternary': {'compressor': 'ternary'},
    'one_bit': {'compressor': 'one_bit'},
    'sparse': {'compressor': 'sparse'},
    'local2': {'local_steps': 2},
    '3lc': {'compressor': 'three_lc'},
    **{f'3lc_{int(100 * s)}': {'compressor': 'three_lc', 'multiplier': s} for s in (1.5, 1.75, 1.9)},
    '3lc_175_pull_100': {'compressor': 'three_lc', 'multiplier': 1.75, 'pull_multiplier': 1.0},
    '3lc_no_zero_runs': {'compressor': 'three_lc', 'zero_runs': False},
    'dct': {'compressor': 'dct'},
    # S2 Reducer's blocks; SparCML's 16 of every 512, and with 4 bits where its sums are dense.
    **{f'blocks{end}': {'compressor': 'block_top_k', 'collective': collective}
       for end, collective in (('', 'all_gather'), ('_s2', 's2'), ('_union', 'union_sum'))},
    'top16': {'compressor': 'bucket_top_k'},
    'top16_q4': {'compressor': 'bucket_top_k', 'collective': 'dsar', 'bits': 4},
}


def get_config(variant: str = 'float32'):
  return experiment.choose(base(), VARIANTS, variant)
