"""All programs of a plan in one process, round by round: what every other engine must equal, to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dct_jax.partition import codecs
from dct_jax.partition.feedback import EdgeFeedback
from dct_jax.partition.graph import Graph, shapes
from dct_jax.partition.programs import Program, RoundStep, Transfer
from dct_jax.partition.segments import Segment


def simulate(graph: Graph, programs: dict[str, Program], *arguments: Any,
             feedback: Mapping[str, EdgeFeedback] | None = None) -> Any:
  """Calls the function that the graph was traced from, node by node.

  Args:
    graph: of that function.
    programs: of all nodes.
    *arguments: its arguments.
    feedback: of nodes, from `Plan.feedback`; its buffers are those after the call. Without it nothing is kept.

  Returns:
    What it returns.
  """
  leaves, tree = jax.tree.flatten(arguments)
  if tree != graph.in_tree:
    raise ValueError(f'this plan is of a function of {graph.in_tree}, got {tree}')
  nodes = {name: Node(graph, program, {k: leaves[k] for k in program.slots}, (feedback or {}).get(name))
           for name, program in programs.items()}
  steps = sorted(((step.round, name, step) for name, p in programs.items() for step in p.steps), key=lambda x: x[:2])
  mail: dict[tuple[str, str, int], list[Any]] = {}
  for when, name, step in steps:
    for peer in step.receives:
      nodes[name].receive(step, peer, mail.pop((peer, name, when)))
    nodes[name].run(step)
    for peer in step.sends:
      mail[name, peer, when + 1] = nodes[name].send(step, peer)
  assert not mail, f'messages that nobody has taken: {list(mail)}'
  results = {i: jnp.asarray(o.source.val, _dtype(o.source)) for i, o in enumerate(graph.outputs)
             if not isinstance(o.source, int)}
  for name in nodes:
    results |= nodes[name].results()
  out = [results[i] for i in range(len(graph.outputs))]
  return jax.tree.unflatten(graph.out_tree, out)


def _dtype(literal: Any) -> Any:
  return literal.aval.dtype


def _checked(graph: Graph, k: int, x: Any) -> Any:
  """What a slot is to hold. Another size of a batch would be divided by the one that was traced."""
  slot, got = graph.slots[k], shapes(x)
  want = graph.avals[slot.value]
  if (got.shape, got.dtype) != (want.shape, want.dtype):
    raise ValueError(f'this plan is for {want.str_short()} in {slot.kind} {slot.path!r}, got '
                     f'{got.dtype}{list(got.shape)}: make a plan for these shapes and types')
  return x


class Node:
  """What one node knows while it works on a batch. Engines move what `send` gives to the peer's `receive`.

  Args:
    graph: of the whole program.
    program: of the node.
    slots: number -> what the node has there.
    feedback: what all batches of the node share of what their gradients have lost; None if nothing is kept.
  """

  def __init__(self, graph: Graph, program: Program, slots: dict[int, Any], feedback: EdgeFeedback | None = None):
    self.graph, self.program, self.feedback = graph, program, feedback
    self.known: dict[int, Any] = dict(graph.constants)
    self.known.update((graph.slots[k].value, _checked(graph, k, x)) for k, x in slots.items())
    self.encoded: dict[int, Any] = {}  # what came, to be sent on as it is

  def receive(self, step: RoundStep, peer: str, payloads: list[Any]) -> None:
    """Takes a message."""
    for transfer, payload in zip(step.receives[peer], payloads, strict=True):
      self.encoded[transfer.value] = payload
      self.known[transfer.value] = codecs.decode(payload, transfer.codec, self.graph.avals[transfer.value])

  def run(self, step: RoundStep) -> None:
    """Runs the segments of a round."""
    for segment in step.runs:
      self.run_segment(segment)

  def run_segment(self, segment: Segment) -> None:
    """Runs one of them."""
    made = segment.function(*(self.known[v] for v in segment.inputs))
    self.known.update(zip(segment.outputs, made, strict=True))

  def send(self, step: RoundStep, peer: str) -> list[Any]:
    """A message."""
    for transfer in step.sends[peer]:
      if transfer.value not in self.encoded:
        self.encoded[transfer.value] = self._encode(transfer)
    return [self.encoded[t.value] for t in step.sends[peer]]

  def _encode(self, transfer: Transfer) -> Any:
    x = self.known[transfer.value]
    if self.feedback is None:
      return codecs.encode(x, transfer.codec)
    return self.feedback.encode(transfer.value, x, transfer.codec)

  def results(self) -> dict[int, Any]:
    """Outputs of the whole program that are here."""
    return {number: self.known[value] for number, value in self.program.results}
