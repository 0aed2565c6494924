"""What travels: layouts, sparse streams, headers, and exact byte accounting."""

from dct_jax.wire.header import Header, read_headers
from dct_jax.wire.layout import Layout, layout_of
from dct_jax.wire.size import INDEX_CODECS, VALUE_CODECS, entry_limit, stream_words

__all__ = [
    'INDEX_CODECS', 'VALUE_CODECS', 'Header', 'Layout', 'entry_limit', 'layout_of', 'read_headers',
    'stream_words',
]
