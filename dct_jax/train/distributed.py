"""Starts JAX on one process or on several."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NamedTuple

import jax
from absl import flags, logging

from dct_jax.train import lifeline, memory
from dct_jax.transport import addresses

flags.disclaim_key_flags()  # what is defined here are flags of the script that asks for them: --help lists them
PREFIX = 'DCT_JAX_'  # of the environment variables that `launch` sets


class Cluster(NamedTuple):
  """Who takes part; None where nothing was said."""

  coordinator: str | None = None
  num_processes: int | None = None
  process_id: int | None = None
  local_devices: int | None = None
  interface: str | None = None
  tls: str | None = None


TEXTS = ('coordinator', 'interface', 'tls')  # the others are numbers
_started: Cluster | None = None


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines --coordinator, --num_processes, --process_id, --local_devices, --interface and --tls."""
  flags.DEFINE_string('coordinator', None, 'Address host:port of process 0; the same on all processes.',
                      flag_values=values)
  flags.DEFINE_string('interface', None, 'Network interface of this host, or its address, at which other processes '
                      'reach this one; unless given, the one that reaches the coordinator.', flag_values=values)
  flags.DEFINE_string('tls', None, 'Directory with certificate.pem, key.pem and authority.pem, to encrypt what '
                      'transports send; nothing is encrypted unless given.', flag_values=values)
  for name, least, text in [('num_processes', 1, 'Number of processes that train together.'),
                            ('process_id', 0, 'Number of this process, from 0.'),
                            ('local_devices', 1, 'Number of CPU devices of this process.')]:
    flags.DEFINE_integer(name, None, text, lower_bound=least, flag_values=values)


def flag_values(values: flags.FlagValues = flags.FLAGS) -> dict:
  """What the flags say, as arguments of `start`."""
  return {name: values[name].value for name in Cluster._fields}


def start(coordinator: str | None = None, num_processes: int | None = None,
          process_id: int | None = None, local_devices: int | None = None,
          interface: str | None = None, tls: str | None = None) -> None:
  """Starts JAX's distributed runtime if there is one to start; call it before any other use of JAX.

  What is not given is taken from the environment variables DCT_JAX_COORDINATOR,
  DCT_JAX_NUM_PROCESSES, DCT_JAX_PROCESS_ID and DCT_JAX_LOCAL_DEVICES, which `dct_jax.train.launch`
  sets, and from DCT_JAX_INTERFACE and DCT_JAX_TLS. If they are silent too, JAX looks for a cluster
  that it knows (Slurm, Open MPI, Cloud TPU, ...) and otherwise this is the only process. It also
  keeps freed memory for later arrays (`train.memory`), and ends this process if its launcher is gone
  (`train.lifeline`). A second call with the same values does nothing.

  Args:
    coordinator: host:port at which process 0 listens, and nowhere else.
    num_processes: number of processes.
    process_id: number of this one.
    local_devices: CPU devices of this process; ignored by other backends.
    interface: network interface, or address, of this host for transports; by default the one that reaches the
      coordinator.
    tls: directory with the files of `transport.Tls.of`, for transports; by default they do not encrypt.

  Raises:
    ValueError: for values that do not fit together.
    RuntimeError: if JAX was used before, or was started with other values.
  """
  global _started
  given = Cluster(coordinator, num_processes, process_id, local_devices, interface, tls)
  cluster = _check(Cluster(*(_or_environment(n, v) for n, v in given._asdict().items())))
  if _started is not None:
    if cluster != _started:
      raise RuntimeError(f'JAX was started with {_started}, got {cluster}')
    return
  memory.keep()
  addresses.settle(addresses.Place(cluster.coordinator, cluster.interface, cluster.tls))
  lifeline.watch()
  if cluster.local_devices is not None:
    _set_devices(cluster.local_devices)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  if cluster.coordinator is not None:
    jax.distributed.initialize(*cluster[:3], **_bind_address(cluster))
  else:
    _detect()
  _started = cluster
  if jax.distributed.is_initialized():
    atexit.register(_leave_if_failed)  # before JAX's own handler: the last registered runs first


def _bind_address(cluster):
  """Where process 0 listens: at the address that was given, not at all that this host has."""
  if cluster.process_id or os.environ.get('JAX_COORDINATOR_BIND_ADDRESS'):
    return {}
  if addresses.listens_for_all(cluster.coordinator.rpartition(':')[0].strip('[]')):
    return {'coordinator_bind_address': cluster.coordinator}
  return {}  # this host has it under a name, or behind a gateway, that only others know


def _leave_if_failed():
  """Leaves at once after an uncaught exception.

  JAX would wait at a barrier for the other processes, which wait for us in a collective: nobody
  would learn for minutes that something is wrong. After Ctrl-C all have stopped alike.
  """
  error = getattr(sys, 'last_value', None)
  if error is not None and not isinstance(error, KeyboardInterrupt):
    leave(1)


def leave(code: int) -> None:
  """Ends this process at once if there are others, without waiting for them; does nothing where it is alone."""
  if jax.distributed.is_initialized():
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def several() -> bool:
  """Whether flags or the environment name a coordinator, that is, other processes."""
  return bool(_or_environment('coordinator', flag_values()['coordinator']))


def _or_environment(name, value):
  if value is not None:
    return value
  text = os.environ.get(PREFIX + name.upper())
  if not text or name in TEXTS:
    return text or None
  try:
    return int(text)
  except ValueError:
    raise ValueError(f'{PREFIX + name.upper()} must be a whole number, got {text=}') from None


def _check(cluster):
  together = cluster[:3]
  if any(v is not None for v in together) and any(v is None for v in together):
    raise ValueError('coordinator, num_processes and process_id go together: give all of them or '
                     f'none, got {cluster}')
  if cluster.local_devices is not None and cluster.local_devices < 1:
    raise ValueError(f'local_devices must be at least 1, got {cluster.local_devices=}')
  if cluster.coordinator is None:
    return cluster
  if not cluster.coordinator.rpartition(':')[2].isdigit() or ':' not in cluster.coordinator:
    raise ValueError(f'coordinator must be host:port, got {cluster.coordinator=}')
  if not 0 <= cluster.process_id < cluster.num_processes:
    raise ValueError('process_id must be at least 0 and less than num_processes, got '
                     f'{cluster.process_id=} and {cluster.num_processes=}')
  return cluster


def _set_devices(count):
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError as error:
    raise RuntimeError('dct_jax.train.start must run before any other use of JAX, got '
                       f'local_devices={count} when its devices exist already') from error


def _detect():
  """Starts the cluster that JAX finds in its environment; stays alone when there is none."""
  try:
    jax.distributed.initialize()
  except ValueError as error:
    # JAX has no public question for this; without a cluster it misses the address first.
    if 'coordinator_address' not in str(error):
      raise
  except RuntimeError as error:
    # Notebooks have used JAX before, which is harmless when there is no cluster to join. JAX does
    # not look for one any more then, so that we cannot know: say it.
    if 'before' not in str(error):
      raise
    logging.warning('JAX was in use before dct_jax.train.start: no cluster was looked for, this '
                    'process trains alone')
