"""A plan: which operator of a program runs on which node, and what crosses. Engines execute it and know no models."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from dct_jax.partition import exact, refine, rules, simulate, split_search
from dct_jax.partition import feedback as edge_feedback
from dct_jax.partition import splits as splits_of
from dct_jax.partition.blocks import Blocks, blocks_of
from dct_jax.partition.costs import Machine
from dct_jax.partition.feedback import EdgeFeedback
from dct_jax.partition.graph import PARAMETER, Graph, nbytes, shapes, train_net
from dct_jax.partition.loads import Codecs, Estimate, Load
from dct_jax.partition.placement import DENSE, SPARSE, Nodes, Placement
from dct_jax.partition.precision import fcs_in
from dct_jax.partition.programs import Program, transform

SECONDS = 5.0  # of a search
METHODS = ('greedy', 'rules', 'exact', 'random')


@dataclasses.dataclass(frozen=True)
class Plan:
  """Where everything is.

  Attributes:
    estimate: of the program: its blocks, the nodes, what they cost.
    at: number of a node for each block.
    moves: of the greedy refinement, with reasons.
    optimal: whether this is known to be the best placement.
    parts: layers that are split, if any: parameters and optimizer state of the planned function are then in parts.
    fc: numbers that FCs multiply forward.
  """

  estimate: Estimate
  at: tuple[int, ...]
  moves: tuple[refine.Move, ...] = ()
  optimal: bool = False
  parts: splits_of.Split | None = None
  fc: str = 'float32'

  @property
  def graph(self) -> Graph:
    return self.estimate.blocks.graph

  @property
  def blocks(self) -> Blocks:
    return self.estimate.blocks

  @property
  def nodes(self) -> Nodes:
    return self.estimate.nodes

  @functools.cached_property
  def load(self) -> Load:
    """What every node has to do for a batch."""
    return self.estimate.load(np.array(self.at))

  @functools.cached_property
  def placement(self) -> Placement:
    """Node of every operator and slot."""
    return self.estimate.placement(np.array(self.at))

  @functools.cached_property
  def programs(self) -> dict[str, Program]:
    """What each node executes, by its name."""
    return self.transform()

  def transform(self, *, apart: bool = False) -> dict[str, Program]:
    """Programs, with updates apart from gradients if nets run at the same time."""
    return transform(self.graph, self.placement, lambda v: self.estimate.codec.of(self.graph, v), apart=apart)

  def simulate(self, *arguments: Any, feedback: Mapping[str, EdgeFeedback] | None = None) -> Any:
    """Calls the planned function `(params, state, *batch) -> (params, state, loss)`, all nodes in this process.

    With `feedback`, from the method of that name, what gradients lose in a call goes along with those of the next one.
    """
    return simulate.simulate(self.graph, self.programs, *arguments, feedback=feedback)

  def feedback(self, key: jax.Array | None = None) -> dict[str, EdgeFeedback]:
    """Node -> empty buffers for what gradients lose that it sends; none if codecs have no feedback.

    Args:
      key: of what is forgotten at random; those of other groups, and of other trainers, have others.
    """
    codec, graph = self.estimate.codec, self.graph
    if codec.feedback is None:
      return {}
    key = jax.random.key(0) if key is None else key
    lossy = {node: {v for v in edge_feedback.encodes(program) if codec.feeds_back(graph, v)}
             for node, program in self.programs.items()}
    return {node: edge_feedback.empty(graph.avals, values, codec.feedback, key)
            for node, values in lossy.items() if values}

  def split(self, params: Any) -> Any:
    """Parameters, or an optimizer's state, as the planned function wants them."""
    return self.parts.split(params) if self.parts else params

  def join(self, params: Any) -> Any:
    """Parameters, or an optimizer's state, as the user's function has them: for checkpoints and evaluation."""
    return self.parts.join(params) if self.parts else params

  def centers(self, servers: int) -> dict[int, str]:
    """Slot of a parameter -> the dense server that keeps the copy which groups synchronize with.

    Tables on sparse servers have none: all groups share those. Slots are dealt out by their bytes, the largest first.

    Raises:
      ValueError: for less than one server, and if one of them cannot hold its part.
    """
    if servers < 1:
      raise ValueError(f'groups synchronize through a dense server or more, got {servers=}')
    size = {k: nbytes(self.graph.avals[s.value]) for k, s in enumerate(self.graph.slots)
            if s.kind == PARAMETER and not (self.placement.slots[k] or '').startswith(SPARSE)}
    held, dealt = [0] * servers, {}
    for k in sorted(size, key=lambda k: (-size[k], k)):
      n = held.index(min(held))
      held[n] += size[k]
      dealt[k] = f'{DENSE}{n}'
    if max(held) > self.estimate.machine.memory:
      raise ValueError(f'a dense server would hold {max(held):,} bytes and has {self.estimate.machine.memory:,.0f}; '
                       'use more of them')
    return dealt

  @property
  def idle(self) -> tuple[str, ...]:
    """Servers that have nothing to do: there are more of them than parts that can be told apart."""
    return tuple(n for i, n in enumerate(self.nodes.names) if i and i not in self.at)


def plan(loss: Callable, optimizer: optax.GradientTransformation, params: Any, *batch: Any, nodes: Nodes,
         has_aux: bool = False, splits: splits_of.Choice | str | None = None, fc: str = 'float32',
         **options: Any) -> Plan:
  """Plans the training of a loss function on the nodes of a group.

  Args:
    loss: `(params, *batch)` -> a scalar, or a pair of it and anything with `has_aux`.
    optimizer: an optax optimizer.
    params: arrays, or their shapes and types.
    *batch: likewise.
    nodes: of the group.
    has_aux: whether `loss` returns more than a number.
    splits: layers that several servers share: a dict for `splits.apply`; 'auto' for those that lower the bottleneck,
      and for tables that are too large for a node; None for none.
    fc: 'int8' for FCs that compute their products forward in 8 bits; see `fcs_in`.
    **options: of `plan_graph`.

  Returns:
    A plan of the function `(params, state, *batch) -> (params, state, loss)`. If layers are split, it has the
    parameters that `Plan.split` gives, and an optimizer's state that was made for those.

  Examples:
    >>> import jax.numpy as jnp, optax
    >>> loss = lambda p, x: jnp.mean((jnp.tanh(x @ p['a']['w']) @ p['b']['w']) ** 2)
    >>> params = {'a': {'w': jnp.ones((4, 8))}, 'b': {'w': jnp.ones((8, 2))}}
    >>> made = plan(loss, optax.sgd(0.1), params, jnp.ones((16, 4)), nodes=Nodes(group=1))
    >>> sorted(made.programs)
    ['group0', 'trainer']
    >>> params, state, value = made.simulate(params, optax.sgd(0.1).init(params), jnp.ones((16, 4)))
  """
  _check_options(nodes, **options)
  net_of = functools.partial(split_net, loss, optimizer, params, *batch, has_aux=has_aux, fc=fc)

  def make(choice: splits_of.Choice, **more: Any) -> Plan:
    net, split = net_of(choice=choice)
    return dataclasses.replace(plan_graph(net, nodes, **{**options, **more}), parts=split, fc=fc)

  if splits != 'auto':
    if not (splits is None or isinstance(splits, Mapping)):
      raise ValueError(f"splits are 'auto', a dict or None, got {splits=}")
    return make(splits or {})
  candidates = splits_of.find(loss, params, *batch)
  first: splits_of.Choice = {}
  if (options.get('machine') or Machine()).memory < math.inf:
    first = _sharded(make, _estimate(net_of(choice={})[0], nodes, **options), candidates)
  quick = functools.partial(make, kicks=0)  # many choices are tried, and one is refined
  found = split_search.best(quick, candidates, nodes.group, first=first, seconds=options.get('seconds', SECONDS))
  return make(found.parts.choice if found.parts else {})


def split_net(loss: Callable, optimizer: optax.GradientTransformation, params: Any, *batch: Any,
              choice: splits_of.Choice, has_aux: bool = False,
              fc: str = 'float32') -> tuple[Graph, splits_of.Split | None]:
  """The train net of a loss whose layers are in parts, and what splits and joins parameters; None if none are."""
  split = splits_of.apply(loss, params, batch, choice) if choice else None
  if split:
    loss, params = split.loss, jax.eval_shape(split.split, shapes(params))
  return train_net(fcs_in(loss, fc), optimizer, params, *batch, has_aux=has_aux), split


def _sharded(make: Callable[[splits_of.Choice], Plan], estimate: Estimate,
             candidates: Sequence[splits_of.Candidate]) -> splits_of.Choice:
  """The fewest parts of large tables that fit; nothing if none do, so that the error speaks of the table."""
  servers = estimate.nodes.sparse or estimate.nodes.group
  for choice in split_search.shards(estimate, candidates, servers):
    try:
      make(choice)
    except ValueError:
      continue
    return choice
  return {}


def _estimate(graph: Graph, nodes: Nodes, *, codec: Codecs | None = None, machine: Machine | None = None,
              nets: int = 1, **_: Any) -> Estimate:
  return Estimate(blocks_of(graph), nodes, machine or Machine(), codec, nets)


def plan_graph(graph: Graph, nodes: Nodes, *, codec: Codecs | None = None, machine: Machine | None = None,
               rule: Sequence[rules.Rule] = (), method: str = 'greedy', seconds: float = SECONDS, seed: int = 0,
               nets: int = 1, kicks: int = refine.KICKS) -> Plan:
  """Places a program that has been traced.

  Args:
    graph: from `train_net`.
    nodes: of the group.
    codec: in which codecs values travel; exactly unless given.
    machine: what a node can do; see `measure_machine`.
    rule: rules of your own, asked before the others.
    method: 'greedy' refines what rules give; 'rules' does not; 'exact' takes long for more than 20 blocks; 'random'.
    seconds: that the search may take.
    seed: for 'random'.
    nets: batches that a trainer works on at the same time, for memory.
    kicks: how patient 'greedy' is; see `refine.refine`.

  Raises:
    ValueError: if something cannot be placed, or does not fit a node's memory.
  """
  if method not in METHODS:
    raise ValueError(f'a plan is made by one of {METHODS}, got {method=}')
  _check_options(nodes, codec=codec, machine=machine, seconds=seconds, nets=nets, kicks=kicks)
  estimate = _estimate(graph, nodes, codec=codec, machine=machine, nets=nets)
  rules.check(estimate.blocks, rule)
  may = rules.allowed(estimate.blocks, nodes, (rules.by_tag, *rule, *rules.RULES))
  _check_blocks(estimate)
  at, optimal = rules.place(estimate, may), False
  moves: list[refine.Move] = []
  if method == 'greedy':
    at, moves = refine.refine(estimate, at, may, seconds=seconds, kicks=kicks)
  elif method == 'exact':
    at, optimal = exact.solve(estimate, may, seconds=seconds)
  elif method == 'random':
    at = rules.scattered(may, seed)
  made = Plan(estimate, tuple(int(n) for n in at), tuple(moves), optimal)
  check_memory(made)
  return made


def _check_options(nodes: Any, *, codec: Any = None, machine: Any = None, seconds: float = SECONDS, nets: int = 1,
                   kicks: int = 0, **_: Any) -> None:
  for name, value, kind in (('nodes', nodes, Nodes), ('codec', codec, Codecs), ('machine', machine, Machine)):
    if not isinstance(value, kind) and (value is not None or kind is Nodes):
      raise ValueError(f'{name} is a dct_jax.partition.{kind.__name__}, got {value!r}')
  if not (seconds > 0 and nets >= 1 and kicks >= 0):
    raise ValueError(f'a search takes time, and a trainer has a net or more, got {seconds=} {nets=} {kicks=}')


def _largest(estimate: Estimate, b: int) -> str:
  """The largest slot of a block, for messages."""
  graph, block = estimate.blocks.graph, estimate.blocks.blocks[b]
  size = {graph.slots[s].path: nbytes(graph.avals[graph.slots[s].value]) for s in block.slots}
  if not size:
    return f'{estimate.activations[b]:,.0f} bytes of activations'
  path = max(size, key=lambda k: size[k])
  return f'{path} has {size[path]:,} bytes, all of it with the optimizer {estimate.weights[b]:,.0f}'


def _check_blocks(estimate: Estimate) -> None:
  """Refuses what is too large for any node, before anything is compiled."""
  held = estimate.weights + estimate.activations
  for b in np.argsort(-held):
    if held[b] > estimate.machine.memory:
      raise ValueError(f'{estimate.blocks.blocks[b].name!r} fits no node: {_largest(estimate, b)}, a node has '
                       f'{estimate.machine.memory:,.0f}; split it, or use larger nodes')


def check_memory(made: Plan) -> None:
  """Refuses a plan by which a node would hold more than it has."""
  for n, held in enumerate(made.load.memory):
    if held > made.estimate.machine.memory:
      mine = [b for b, at in enumerate(made.at) if at == n]
      largest = max(mine, key=lambda b: made.estimate.weights[b], default=None)
      what = 'buffers of messages' if largest is None else (
          f'{made.blocks.blocks[largest].name!r} ({_largest(made.estimate, largest)})')
      raise ValueError(f'{made.nodes.names[n]} would hold {held:,.0f} bytes and has '
                       f'{made.estimate.machine.memory:,.0f}; the largest part is {what}; use more servers or split it')
