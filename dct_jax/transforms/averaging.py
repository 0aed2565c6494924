"""Ways to pull replicas together: pure mathematics, which a mesh and a server use alike.

Groups train replicas of a model, each its own. From time to time every group adds a *share* to a sum over groups; what
all know of each other, the `Center`, *absorbs* the sum; and every group makes a *change* of its replica by what came
back. On a mesh the sum is a collective (`dct_jax.transforms.synchronize`). A server holds the center, takes snapshots
of replicas and answers with corrections, which are good for a replica that has moved on in the meantime:

    >>> import jax.numpy as jnp
    >>> from dct_jax.transforms import averaging
    >>> method = averaging.elastic(0.5)
    >>> server = method.init(jnp.zeros(2))
    >>> snapshot = jnp.array([4.0, 8.0])
    >>> server, (correction,) = method.exchange(server, [snapshot])      # one group at a time
    >>> server.center.tolist()
    [2.0, 4.0]
    >>> replica = snapshot + 1.0                                         # it was trained while it waited
    >>> method.apply(replica, correction).tolist()
    [3.0, 5.0]

A method with `waits` needs the snapshots of all live groups at once; the others take as many as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Center(NamedTuple):
  """What all groups know of each other, float32; empty where a method keeps nothing."""

  center: Any = ()  # a tree like the parameters
  velocity: Any = ()  # likewise


class Method(NamedTuple):
  """Pure functions on trees of arrays, made by a factory.

  Attributes:
    init: the parameters that all groups start from -> Center.
    share: (Center, replica) -> what a group adds to the sum over groups.
    absorb: (Center, sum of shares, how many they are) -> (Center, answer to all).
    correction: (own share, answer) -> what a group needs to know for its change.
    change: (replica as it is now, correction) -> what is to be added to it.
    check: number of groups that come together -> None; raises ValueError if they are too many.
    waits: whether all live groups must come together.
  """

  init: Callable[[Any], Center]
  share: Callable[[Center, Any], Any]
  absorb: Callable[[Center, Any, Any], tuple[Center, Any]]
  correction: Callable[[Any, Any], Any]
  change: Callable[[Any, Any], Any]
  check: Callable[[int], None]
  waits: bool

  def exchange(self, state: Center, replicas: Sequence[Any]) -> tuple[Center, list[Any]]:
    """What a server does with snapshots that came together: its new state, and a correction for each of them."""
    self.check(len(replicas))
    shares = [self.share(state, x) for x in replicas]
    total = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *shares)
    state, answer = self.absorb(state, total, len(replicas))
    return state, [self.correction(share, answer) for share in shares]

  def apply(self, replica: Any, correction: Any) -> Any:
    """What a group does with a correction: its replica, which may have moved on, in the types that it had."""
    moved = jax.tree.map(jnp.add, wide(replica), self.change(replica, correction))
    return jax.tree.map(lambda new, x: new.astype(x.dtype), moved, replica)


def elastic(alpha: float) -> Method:
  """EASGD: a spring of strength `alpha` between each replica and the center, which pulls both ends.

  With the same d = alpha * (x - center), taken of one snapshot, x -= d and center += d, so that the sum of the
  replicas and the center stays as it is.

  Where G groups come together, the center becomes (1 - G * alpha) * center + alpha * (sum of replicas). Beyond
  G * alpha = 1 its own weight is negative: it would jump past the mean of the replicas, swing around it, and, from
  about 2 on, move away from it. So that is refused. Groups that come one at a time may have any alpha.

  Args:
    alpha: in (0, 1].
  """
  _check_share('alpha', alpha)

  def check(groups):
    if groups * alpha > 1 + 1e-6:  # 1 / G times G may round to more than 1
      raise ValueError(f'alpha times the groups that synchronize together must be at most 1, or the center jumps past '
                       f'the mean of the replicas, got {alpha=} and {groups=}')

  def share(state, x):
    return jax.tree.map(lambda x, c: alpha * (x - c), wide(x), state.center)

  def absorb(state, total, groups):
    del groups
    return state._replace(center=jax.tree.map(jnp.add, state.center, total)), ()

  return Method(
      init=lambda params: Center(_copy(params)), share=share, absorb=absorb, correction=lambda share, _: share,
      change=lambda _, correction: jax.tree.map(jnp.negative, correction), check=check, waits=False)


def mean(alpha: float = 1.0) -> Method:
  """Model averaging: x = (1 - alpha) * x + alpha * mean(x).

  Args:
    alpha: in (0, 1]; 1 makes all replicas the mean.
  """
  _check_share('alpha', alpha)

  def absorb(state, total, groups):
    return state, jax.tree.map(lambda x: x / groups, total)

  return Method(
      init=lambda _: Center(), share=lambda _, x: wide(x), absorb=absorb, correction=lambda _, answer: answer,
      change=_pull(alpha), check=_any_number, waits=True)


def block_momentum(momentum: float, step_size: float = 1.0, alpha: float = 1.0, nesterov: bool = False) -> Method:
  """BMUF: a center that follows the mean of the replicas with momentum, and replicas that follow the center.

  velocity = momentum * velocity + step_size * (mean(x) - center); center += velocity;
  x = (1 - alpha) * x + alpha * center. With Nesterov's momentum x is pulled towards center + momentum * velocity, where
  the center would go next by itself.

  Args:
    momentum: in [0, 1); 1 - 1 / groups is what its authors take.
    step_size: larger than 0.
    alpha: in (0, 1].
    nesterov: whether replicas look ahead.
  """
  _check_share('alpha', alpha)
  if not 0 <= momentum < 1:
    raise ValueError(f'momentum must be at least 0 and less than 1, got {momentum=}')
  if not 0 < step_size < float('inf'):
    raise ValueError(f'step_size must be a number larger than 0, got {step_size=}')

  def init(params):
    return Center(_copy(params), jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), params))

  def absorb(state, total, groups):
    velocity = jax.tree.map(
        lambda v, x, c: momentum * v + step_size * (x / groups - c), state.velocity, total, state.center)
    center = jax.tree.map(jnp.add, state.center, velocity)
    ahead = jax.tree.map(lambda c, v: c + momentum * v, center, velocity) if nesterov else center
    return Center(center, velocity), ahead

  return Method(
      init=init, share=lambda _, x: wide(x), absorb=absorb, correction=lambda _, answer: answer,
      change=_pull(alpha), check=_any_number, waits=True)


def wide(tree: Any) -> Any:
  """A tree in float32: a center moves by less than a narrow type may resolve."""
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _copy(params):
  """Not the parameters themselves, which a step may be given with the center, to write over both."""
  return jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)


def _pull(alpha):
  return lambda x, target: jax.tree.map(lambda x, t: alpha * (t - x), wide(x), target)


def _any_number(groups):
  del groups


def _check_share(name, value):
  if not 0 < value <= 1:
    raise ValueError(f'{name} must be larger than 0 and at most 1, got {name}={value!r}')
