"""What a batch is made of: a task for every round of every node, and the messages between them, with what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dct_jax.partition import codecs
from dct_jax.partition.graph import UPDATE
from dct_jax.partition.plan import Plan
from dct_jax.partition.programs import Program, RoundStep, Transfer


class Task(NamedTuple):
  """A node's round of a batch.

  Attributes:
    node: its name.
    step: what it does.
    seconds: of a processor, with codecs.
    waits: number of things that it waits for: messages, and the node's round before.
    then: number of the node's next task, if it has one.
    sends: (number of the task that waits for it, bytes) of each message.
    reads: whether the batch reads parameters of the node here for the first time.
    writes: whether it updates parameters.
  """

  node: str
  step: RoundStep
  seconds: float
  waits: int
  then: int | None
  sends: tuple[tuple[int, int], ...]
  reads: bool
  writes: bool


def tasks_of(plan: Plan, programs: dict[str, Program] | None = None) -> tuple[Task, ...]:
  """All tasks of a batch, in an order in which they can run: by rounds.

  Args:
    plan: of a program.
    programs: of all nodes; the plan's own unless given.
  """
  programs = programs or plan.programs
  steps = sorted(((step.round, node, step) for node, p in programs.items() for step in p.steps), key=lambda x: x[:2])
  number = {(node, when): i for i, (when, node, _) in enumerate(steps)}
  then = {(node, a.round): number[node, b.round] for node, p in programs.items()
          for a, b in zip(p.steps, p.steps[1:], strict=False)}
  first = {node: next((s.round for s in p.steps if _reads(plan, p, s)), None) for node, p in programs.items()}
  spent = dict(_seconds(plan, programs))
  made = []
  for when, node, step in steps:
    sends = tuple((number[peer, when + 1], sum(_size(plan, t) for t in sent)) for peer, sent in step.sends.items())
    waits = len(step.receives) + (step.round != programs[node].steps[0].round)
    made.append(Task(node, step, spent[node, when], waits, then.get((node, when)), sends, first[node] == when,
                     any(s.phase == UPDATE for s in step.runs)))
  return tuple(made)


def _reads(plan: Plan, program: Program, step: RoundStep) -> bool:
  held = {plan.graph.slots[k].value for k in program.slots}
  return any(held.intersection(s.inputs) for s in step.runs)


def _seconds(plan: Plan, programs: dict[str, Program]) -> Iterator[tuple[tuple[str, int], float]]:
  """((node, round), seconds). A value is encoded once, and what came in a codec is sent on as it is."""
  machine, graph = plan.estimate.machine, plan.graph
  of_operator = [machine.seconds(graph, op) for op in graph.operators]
  coding = lambda t: plan.estimate.codec.seconds(graph, t.value, machine)
  for node, program in programs.items():
    encoded: set[int] = set()
    for step in program.steps:
      got = [t for transfers in step.receives.values() for t in transfers]
      encoded.update(t.value for t in got)
      sent = {t.value: t for transfers in step.sends.values() for t in transfers if t.value not in encoded}
      encoded.update(sent)
      spent = sum(of_operator[i] for s in step.runs for i in s.operators) + machine.call * len(step.runs)
      spent += sum(coding(t)[1] for t in got) + sum(coding(t)[0] for t in sent.values())
      yield (node, step.round), spent


def _size(plan: Plan, transfer: Transfer) -> int:
  return codecs.encoded_bytes(plan.graph.avals[transfer.value], transfer.codec)
