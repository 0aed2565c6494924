"""What travels: layouts, sparse streams, headers, and exact byte accounting."""

from dct_jax.wire.exchanges import Algorithm, Op, Settings
from dct_jax.wire.header import Header, read_headers
from dct_jax.wire.layout import Layout, layout_of
from dct_jax.wire.size import INDEX_CODECS, VALUE_CODECS, entry_limit, stream_words

__all__ = [
    'Algorithm', 'Header', 'INDEX_CODECS', 'Layout', 'Op', 'Settings', 'VALUE_CODECS', 'entry_limit', 'layout_of',
    'read_headers', 'stream_words',
]
