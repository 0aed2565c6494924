"""Pure-JAX twin of the kernel that stops a program.

A callback to Python costs every call of the program its fast way through JAX, even if it is never made: the
native kernel does without.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def stop_if(nonfinite, corrupt, stop_nonfinite: bool):
  """Raises in the program if a count says so; `corrupt` otherwise."""

  def stop(nonfinite, corrupt):  # looks again: under vmap both branches of a cond run
    if corrupt:
      raise RuntimeError(f'{int(corrupt)} messages failed their checksum: memory or network errors, '
                         'or workers that run different versions or configurations')
    if nonfinite and stop_nonfinite:
      raise FloatingPointError(
          f"{int(nonfinite)} workers have a gradient with NaN or infinity (nonfinite='raise')")

  fatal = corrupt > 0
  if stop_nonfinite:
    fatal |= nonfinite > 0
  lax.cond(fatal, lambda: jax.debug.callback(stop, nonfinite, corrupt), lambda: None)
  return jnp.asarray(corrupt, jnp.uint32)
