"""Pure-JAX twin of the kernel that stops a program.

A callback to Python costs every call of the program its fast way through JAX, even if it is never made: the
native kernel does without. On an accelerator it would cost a way to the host as well. So there a program has a
callback only if its user asked for one, with `nonfinite='raise'`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def stop_if(nonfinite, corrupt, stop_nonfinite: bool):
  """Raises in the program if a count says so; `corrupt` otherwise.

  On an accelerator without `stop_nonfinite` it never raises: corrupt messages are left out, counted, and their
  step is called off, as that of a gradient with a NaN is.
  """

  def stop(nonfinite, corrupt):  # looks again: under vmap both branches of a cond run
    if corrupt:
      raise RuntimeError(f'{int(corrupt)} messages failed their checksum: memory or network errors, '
                         'or workers that run different versions or configurations')
    if nonfinite and stop_nonfinite:
      raise FloatingPointError(
          f"{int(nonfinite)} workers have a gradient with NaN or infinity (nonfinite='raise')")

  def check():
    fatal = corrupt > 0
    if stop_nonfinite:
      fatal |= nonfinite > 0
    lax.cond(fatal, lambda: jax.debug.callback(stop, nonfinite, corrupt), lambda: None)

  if stop_nonfinite:
    check()
  elif jax.default_backend() == 'cpu':
    lax.platform_dependent(cpu=check, default=lambda: None)  # it may be traced here for another platform
  return jnp.asarray(corrupt, jnp.uint32)
