"""Training in stages on a (data, stage) mesh: activations go between stages, gradients between data workers.

Every stage has a mesh of its own, of the workers that share the batch, with its parameters, its optimizer's
state and, where it has any, its tables. A worker computes its stage's gradients with `runtime.worker`; how
they are averaged and applied is the same as without stages.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dct_jax.runtime.schedule import split_batch
from dct_jax.runtime.shared import Path, Shared
from dct_jax.runtime.stages import Stage
from dct_jax.runtime.worker import Programs, Worker, run
from dct_jax.tables import RowExchange, RowOptimizer, init_rows, update_all
from dct_jax.train import step as steps
from dct_jax.transforms import init
from dct_jax.transport import Transport, local_links, open_links

TOLD = 1 << 20  # bytes that a stage's metrics may take
ACTIVATION = ('forward_bytes', 'backward_bytes', 'dense_bytes')
SUMS = (*steps.BYTES, *(f'activation_{name}' for name in ACTIVATION), 'row_bytes', 'shared_bytes', 'drained')


class Tables(NamedTuple):
  """Embedding tables of a stage; their rows are its `own`."""

  exchange: RowExchange  # over the data axis
  optimizer: RowOptimizer


class Pipeline:
  """Which stages and workers are in this process, and their programs.

  Args:
    stages: in order.
    mesh: from `make_mesh(workers, stages=...)`: one device a process, or all in one process.
    tx: stage -> a chain with a compressed mean over the data axis in it.
    tables: stage -> its tables, where it has any.
    microbatches: parts of a worker's examples that are on their way at the same time.
    shared: stage -> paths of parameters of which other stages have copies (keys from the outermost in), as
      embeddings that a model uses at both ends. Their gradients are added up over the stages, as they are, so
      that copies stay equal; `shared_bytes` in the metrics is what that takes. A lossy `tx` needs
      `means_apart` for that, too.
    transport: along the data axis, from `dct_jax.connect`, for the means of metrics.
    timeout: seconds of silence after which another stage counts as gone.
    deadline: seconds after which one counts as gone that has not sent all of a message, whatever came.

  Raises:
    ValueError: if the mesh has no such axes, or another number of stages.
  """

  def __init__(self, stages: Sequence[Stage], mesh: Mesh, tx: Callable[[int], optax.GradientTransformation],
               tables: Mapping[int, Tables] | None = None, *, microbatches: int = 1,
               shared: Mapping[int, Sequence[Path]] | None = None,
               transport: Transport | None = None, timeout: float = 60.0, deadline: float = 600.0):
    if mesh.shape.get('stage', 1) != len(stages):
      raise ValueError(f'the mesh has {mesh.shape.get("stage", 1)} stages, got {len(stages)=}')
    devices = mesh.devices.reshape(-1, len(stages))
    mine: Callable[[Any], bool] = lambda device: device.process_index == jax.process_index()
    here = [(d, s) for d, s in np.ndindex(devices.shape) if mine(devices[d, s])]
    self.size, self.workers = len(stages), devices.shape[0]
    self.meshes = {s: Mesh(devices[:, s], ('data',), axis_types=(AxisType.Auto,)) for _, s in here}
    self.shares = sorted({d for d, _ in here})  # whose examples are wanted here
    self.tables = {s: t for s, t in (tables or {}).items() if s in self.meshes}
    self.tx = {s: tx(s) for s in self.meshes}
    cuts = [(), *(stage.cuts for stage in stages)]
    programs = {s: Programs(stages[s], cuts[s], microbatches) for s in self.meshes}
    links = self._links(mesh, timeout, deadline)
    self._crew = {(d, s): Worker(s, programs[s], links[d, s]) for d, s in here}
    self._devices = {(d, s): devices[d, s] for d, s in here}
    self._mean = steps.mean_over('data', transport)
    self._shared = Shared(shared or {})
    self._fetch: dict[int, Any] = {}
    self._update: dict[int, Any] = {}
    self._sizes: dict[int, int] = {}  # parameters of each stage

  def _links(self, mesh, timeout, deadline):
    if jax.process_count() > 1:
      (place,) = np.argwhere(mesh.devices.reshape(-1, self.size) == jax.local_devices()[0])
      return {tuple(int(i) for i in place): open_links(mesh, 'stage', timeout=timeout, deadline=deadline)}
    every = [local_links(self.size) for _ in range(self.workers)]
    return {(d, s): every[d][s] for d in range(self.workers) for s in range(self.size)}

  def init(self, params: Callable[[int], Any],
           tables: Callable[[int], jax.Array] | None = None) -> tuple[dict, dict, dict]:
    """Places what this process's stages have.

    Args:
      params: stage -> its parameters, equal on all processes.
      tables: stage -> float32[workers * rows, width], for stages with tables.

    Returns:
      Parameters, state and the state's specs, each by stage; only of the stages here.
    """
    placed = {}
    for s, mesh in self.meshes.items():
      here, state, specs = init(self.tx[s], params(s), mesh)
      if s in self.tables:
        assert tables is not None, 'a stage with tables needs their first values'
        state, specs = init_rows(self.tables[s].optimizer, tables(s), state, specs, mesh)
      placed[s] = here, state, specs
      self._sizes[s] = sum(x.size for x in jax.tree.leaves(here))
      self._fetch[s], self._update[s] = self._make_fetch(s), self._make_update(s, specs)
    return tuple({s: found[i] for s, found in placed.items()} for i in range(3))  # type: ignore[return-value]

  def step(self, params: dict, state: dict, batch: dict) -> tuple[dict, dict, dict]:
    """One step.

    Args:
      params: by stage.
      state: by stage.
      batch: NumPy arrays with the examples of `shares`.

    Returns:
      New parameters and state, and metrics as of `make_step`: equal on all workers, and sums over stages where
      they count bytes. `crossed_bytes` are what a worker's stages have sent to each other.
    """
    asked = self._begin(params, state, batch)
    run(list(self._crew.values()))
    results = self._share({place: worker.result() for place, worker in self._crew.items()})
    params, state, found = dict(params), dict(state), {}
    for s in self.meshes:
      mine = [results[d, s] for d in self.shares]
      scalars = [r.scalars | {f'activation_{k}': np.float32(v) for k, v in r.traffic.items()} for r in mine]
      grads = self._gather(s, [(r.grads, r.own_grads, x) for r, x in zip(mine, scalars, strict=True)])
      params[s], state[s], found[s] = self._update[s](params[s], state[s], *grads, asked.get(s, ()))
    return params, state, self._combine(jax.device_get(found))

  def _share(self, results):
    """Gradients of shared parameters, added up over the stages that have copies."""
    out = {}
    for (d, s), result in results.items():
      sent = self._shared.tell(s, result.grads, self._crew[d, s].links)
      out[d, s] = result._replace(scalars=result.scalars | {'shared_bytes': np.float32(sent)})
    return {(d, s): result._replace(grads=self._shared.hear(s, result.grads, self._crew[d, s].links))
            for (d, s), result in out.items()}

  def predict(self, params: dict, state: dict, batch: dict) -> np.ndarray:
    """The last stage's answers for all workers' examples, in order, on every process.

    Args:
      params: by stage.
      state: by stage.
      batch: NumPy arrays that every process has alike; each worker takes its share.
    """
    every = split_batch(batch, self.workers)
    own, _ = self._own(state, jax.tree.map(lambda *x: np.concatenate(x), *(every[d] for d in self.shares)))
    answers = {}
    for s in sorted(self.meshes):
      for d in self.shares:
        worker = self._crew[d, s]
        args = self._local(params[s], d, s), own.get((d, s), ()), worker.receive_activations(), every[d]
        out = worker.programs.predict(*args)
        if s < self.size - 1:
          worker.send_activations(out)
        else:
          answers[d] = np.asarray(out)
    return self._spread(answers)

  def _spread(self, answers):
    """Answers of the last stage, on all stages of all workers."""
    if jax.process_count() == 1:
      return np.concatenate([answers[d] for d in self.shares])
    ((d, s), worker), = self._crew.items()
    last = self.size - 1
    if s == last:
      file = io.BytesIO()
      np.save(file, answers[d])
      worker.links.tell(file.getvalue())
    else:
      answers = {d: np.load(io.BytesIO(worker.links.receive(last)))}
    every = np.asarray(multihost_utils.process_allgather(answers[d]))
    return np.concatenate(every[::self.size])  # the first stage's process of every worker

  def _begin(self, params, state, batch):
    own, asked = self._own(state, batch)
    for d, part in zip(self.shares, split_batch(batch, len(self.shares)), strict=True):
      for s in self.meshes:
        self._crew[d, s].begin(self._local(params[s], d, s), own.get((d, s), ()), part)
    return asked

  def _own(self, state, batch):
    """Rows of this batch for the stages that have tables, by worker, and whom to update later."""
    own: dict[tuple[int, int], jax.Array] = {}
    asked: dict[int, Any] = {}
    for s, tables in self.tables.items():
      wanted = jax.make_array_from_process_local_data(
          NamedSharding(self.meshes[s], PartitionSpec('data')), tables.exchange.wanted(batch))
      found, asked[s] = self._fetch[s](state[s].tables, wanted)
      own |= {(d, s): self._local(found, d, s) for d in self.shares}
    return own, asked

  def _local(self, tree, d, s):
    """A worker's part of arrays, or its copy."""
    device = self._devices[d, s]
    return jax.tree.map(lambda x: next(p.data for p in x.addressable_shards if p.device == device), tree)

  def _gather(self, s, trees):
    """Arrays by worker as arrays of all workers, with a dimension for them in front."""
    sharding = NamedSharding(self.meshes[s], PartitionSpec('data'))

    def place(*parts):
      shape = (self.workers, *parts[0].shape[1:])
      return jax.make_array_from_single_device_arrays(shape, sharding, list(parts))

    there = [jax.device_put(t, self._devices[d, s]) for d, t in zip(self.shares, trees, strict=True)]
    return jax.tree.map(place, *map(_lift, there))

  def _make_fetch(self, s):
    if s not in self.tables:
      return None
    shard = PartitionSpec('data')
    return jax.jit(jax.shard_map(self.tables[s].exchange.fetch, mesh=self.meshes[s], in_specs=(shard, shard),
                                 out_specs=(shard, shard)))

  def _make_update(self, s, specs):
    tx, mean, tables = self.tx[s], self._mean, self.tables.get(s)

    def update(params, state, grads, own_grads, scalars, asked):
      grads, own_grads, scalars = jax.tree.map(lambda x: x[0], (grads, own_grads, scalars))
      if tables is None:
        updates, state = tx.update(grads, state, params)
        params, account = optax.apply_updates(params, updates), steps.accounts(state)
      else:
        params, state, account = update_all(
            tx, tables.optimizer, tables.exchange, params, state, grads, own_grads, asked)
      others = (params, state.tables if tables is not None else ())
      return params, state, steps.metric_means(scalars, mean, others) | account

    whole, shard = PartitionSpec(), PartitionSpec('data')
    placed = jax.shard_map(update, mesh=self.meshes[s], in_specs=(whole, specs, shard, shard, shard, shard),
                           out_specs=(whole, specs, whole))
    return jax.jit(placed, donate_argnums=(0, 1))

  def _combine(self, found):
    """Metrics of all stages as those of a step."""
    told = {s: json.dumps({k: v.item() for k, v in metrics.items()} | {'size': self._sizes[s]}).encode()
            for s, metrics in found.items()}
    for (_, s), worker in self._crew.items():
      worker.links.tell(told[s])
    heard = [worker.links.hear(told[s], TOLD) for (_, s), worker in self._crew.items()]
    by_stage = [json.loads(message) for message in heard[0]]
    out = dict(by_stage[-1])
    for name in {k for metrics in by_stage for k in metrics} & set(SUMS):
      out[name] = sum(metrics.get(name, 0) for metrics in by_stage)
    if 'nonfinite' in out:
      out['nonfinite'] = max(metrics['nonfinite'] for metrics in by_stage)
    total = sum(metrics['size'] for metrics in by_stage)
    if all('density' in metrics for metrics in by_stage):
      out['density'] = sum(metrics['density'] * metrics['size'] for metrics in by_stage) / total
    else:  # the last stage's own would pass for that of all
      out = {k: v for k, v in out.items() if not k.startswith('density')}
    out['dense_bytes'] = 4 * total  # of gradients: a process knows its own stages' parameters only
    del out['size']
    out['crossed_bytes'] = sum(out[f'activation_{way}_bytes'] for way in ('forward', 'backward')) + out['shared_bytes']
    return {k: np.float64(v) for k, v in out.items()}


_lift = jax.jit(lambda tree: jax.tree.map(lambda x: x[None], tree), donate_argnums=0)
