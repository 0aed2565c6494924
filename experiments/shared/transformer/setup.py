"""The translation model's training step for a configuration: every worker with the whole model, or stages."""

from functools import partial

import jax
import jax.numpy as jnp

import dct_jax
from dct_jax import runtime
from dct_jax.boundaries import Cut
from dct_jax.models.transformer import Transformer, sections
from dct_jax.models.translation_loss import sentence_losses, smoothed_loss
from shared.setups import Setup, connect, stage_share, traffic, traffic_by_cut
from shared.transformer import gnmt
from shared.transformer.optimizer import make_optimizer
from shared.transformer.whole import dropout_key, make_whole


def make_model(config, vocabularies):
  """The model with boundaries where it is cut; `sections` of it are cut for real, and need none."""
  if config.model == 'gnmt':
    return gnmt.make_model(config, vocabularies)
  if config.model != 'transformer':
    raise ValueError(f'model must be transformer or gnmt, got {config.model=}')
  if config.rows:
    raise ValueError(f'only gnmt has tables whose rows travel apart, got {config.model=} and {config.rows=}')
  cut = lambda: dct_jax.SparseBoundary(config.mp_sparsity, config.activation_codec)
  places = [part.end for part in sections(config.splits, config.layers)[:-1]]  # a ValueError for unknown ones
  return Transformer(
      *vocabularies, config.width, config.hidden, config.heads, config.layers, config.dropout, config.norm,
      config.share_embeddings, {place: cut() for place in places})


def make_setup(config, vocabularies):
  """A `Setup` for sizes of the source's and the target's vocabulary."""
  model = make_model(config, vocabularies)
  if config.stages == 1 and config.microbatches > 1:
    raise ValueError(f'only stages have microbatches, got --stages=1 and --microbatches={config.microbatches}')
  if config.model == 'gnmt':
    return gnmt.make_setup(config, model)
  nothing = jnp.ones((1, 1), jnp.int32)
  params = {'params': model.init(jax.random.PRNGKey(config.seed), nothing, nothing)['params']}
  return (in_one_piece if config.stages == 1 else in_stages)(config, model, params)


def in_one_piece(config, model, params):
  """Every worker has the whole model, and cuts are inside of it."""
  def loss_fn(params, batch):
    logits, state = model.apply(params, batch['source'], batch['target_in'], train=True,
                                rngs=dropout_key(batch), mutable=['traffic'])
    loss, scalars = smoothed_loss(logits, batch, config.label_smoothing)
    whole = beside(batch)  # a cut's total has it, as that of real stages
    total = {k: v + sum(whole.values()) for k, v in traffic(state).items()}
    return loss, scalars | total | traffic_by_cut(state) | whole | between_stages()

  def beside(batch):
    """Bytes each way of what crosses a cut as it is, beside the hidden activations."""
    source, target = batch['source'].size, batch['target_in'].size
    words = {'enc': source, 'dec': target + source}  # the residual stream; in the decoder, the memory too
    return {f'{place}/beside_bytes': jnp.float32(4 * config.width * words[place[:3]])
            for place in model.boundaries or {}}

  def between_stages():
    """Bytes each way of the gradient of embeddings that two stages would have."""
    if not model.share_embeddings or not any(place.startswith('dec') for place in model.boundaries or {}):
      return {}
    return {'embeddings/beside_bytes': jnp.float32(4 * model.target_vocab * model.width)}

  def losses(params, batch):
    logits = model.apply(params, batch['source'], batch['target_in'])
    return sentence_losses(logits, batch, config.label_smoothing)

  return make_whole(config, params, loss_fn, losses)


def in_stages(config, model, params):
  """Every worker of the mesh's axis 'data' has several along 'stage', with one section of the model each."""
  parts = sections(config.splits, config.layers, config.share_embeddings)
  if len(parts) != config.stages:
    raise ValueError(f'--stages={config.stages} wants {config.stages - 1} splits, got {config.splits=}')
  mesh = dct_jax.make_mesh(config.workers, stages=config.stages)
  transport = connect(mesh)
  whole = model.clone(boundaries=None)  # cut for real instead
  shared = {s: [('params', name) for name in part.shared] for s, part in enumerate(parts) if part.shared}
  pipeline = runtime.Pipeline(
      [make_stage(config, whole, part) for part in parts], mesh,
      lambda s: make_optimizer(config, transport, shared.get(s, ())),
      microbatches=config.microbatches, transport=transport, shared=shared)
  placed = pipeline.init(lambda s: parts[s].params(params))
  return Setup(pipeline.step, pipeline.predict, placed, pipeline.meshes,
               partial(runtime.StageCheckpoints, meshes=pipeline.meshes, keep=config.average + 1),
               stage_share(pipeline))


def make_stage(config, model, part):
  """A section, and what crosses behind it: hidden activations thresholded, all else as it is."""
  def apply(params, own, inputs, batch):
    out = run(params, inputs, batch, train=True, rngs=dropout_key(batch))
    return smoothed_loss(out, batch, config.label_smoothing) if part.is_last else out

  def run(params, inputs, batch, **more):
    return model.apply(params, batch['source'], batch['target_in'], section=part, inputs=inputs, **more)

  def predict(params, own, inputs, batch):
    out = run(params, inputs, batch)
    return sentence_losses(out, batch, config.label_smoothing) if part.is_last else out

  sparse = Cut(config.mp_sparsity, config.activation_codec)
  return runtime.Stage(apply, tuple(sparse if name == 'hidden' else Cut() for name in part.leaving), predict)
