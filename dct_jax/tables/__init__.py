"""Embedding tables: where rows live, how they travel, optimizers of the used ones, and the step with them."""

from dct_jax.tables.exchange import Asked, RowExchange
from dct_jax.tables.layout import TableLayout, deal, init_tables
from dct_jax.tables.optimizers import RowOptimizer, adagrad, make_optimizer, sgd, sum_duplicates
from dct_jax.tables.step import RowsState, init_rows, make_row_predictor, make_row_step, update_all

__all__ = [
    'Asked', 'RowExchange', 'RowOptimizer', 'RowsState', 'TableLayout', 'adagrad', 'deal', 'init_rows',
    'init_tables', 'make_optimizer', 'make_row_predictor', 'make_row_step', 'sgd', 'sum_duplicates',
    'update_all',
]
