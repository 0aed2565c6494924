"""Bytes between processes: TCP connections on which a message is as long as it is."""

from dct_jax.transport.calls import (
    gather_messages,
    is_bulk,
    mean,
    reduce_messages,
    reduce_stream,
    scatter_messages,
    start_messages,
    wait_messages,
)
from dct_jax.transport.connect import Transport, connect, local_group
from dct_jax.transport.links import Links, local_links, open_links
from dct_jax.transport.tls import Tls

__all__ = [
    'Links', 'Tls', 'Transport', 'connect', 'gather_messages', 'is_bulk', 'local_group', 'local_links', 'mean',
    'open_links', 'reduce_messages', 'reduce_stream', 'scatter_messages', 'start_messages', 'wait_messages',
]
