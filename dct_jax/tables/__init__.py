"""Embedding tables: where rows live, how they travel, optimizers of the used ones, and the step with them."""

from dct_jax.tables import row_messages
from dct_jax.tables.auto import AutoRowsState, auto_rows
from dct_jax.tables.exchange import Asked, RowExchange, RowsState
from dct_jax.tables.layout import TableLayout, deal, init_tables
from dct_jax.tables.optimizers import RowOptimizer, adagrad, make_optimizer, sgd, sum_duplicates
from dct_jax.tables.reducers import (
    RowReducer,
    RowSum,
    dense_rows,
    gather_rows,
    sketch_rows,
    split_rows,
    union_rows,
)
from dct_jax.tables.replicated import ReplicatedRows, ReplicatedRowsState, check_ids
from dct_jax.tables.row_messages import as_stream
from dct_jax.tables.step import init_rows, make_row_predictor, make_row_step, update_all

__all__ = [
    'Asked', 'AutoRowsState', 'ReplicatedRows', 'ReplicatedRowsState', 'RowExchange', 'RowOptimizer', 'RowReducer',
    'RowSum', 'RowsState', 'TableLayout', 'adagrad', 'as_stream', 'auto_rows', 'check_ids', 'deal', 'dense_rows',
    'gather_rows', 'init_rows', 'init_tables', 'make_optimizer', 'make_row_predictor', 'make_row_step', 'sgd',
    'sketch_rows', 'split_rows', 'sum_duplicates', 'union_rows', 'update_all',
    'row_messages',  # a module
]
