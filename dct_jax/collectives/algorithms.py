"""Names of the exchange algorithms, as users write them; their numbers are wire facts."""

from __future__ import annotations

from dct_jax.wire.exchanges import Algorithm, Op

ALGORITHMS = tuple(a.name.lower() for a in Algorithm)
OPS = tuple(o.name.lower() for o in Op)
DENSE_RESULTS = ('dsar', 'dense')  # these give an array, the others a stream


def number(algorithm: str) -> int:
  """The wire's number of an algorithm."""
  return int(Algorithm[algorithm.upper()])


def check_algorithm(algorithm: str) -> None:
  """Refuses what is neither 'auto' nor an algorithm."""
  if algorithm not in ('auto', *ALGORITHMS):
    raise ValueError(f"algorithm must be 'auto' or one of {ALGORITHMS}, got {algorithm=}")


def check_op(op: str) -> None:
  """Refuses an unknown reduction."""
  if op not in OPS:
    raise ValueError(f'op must be one of {OPS}, got {op=}')
