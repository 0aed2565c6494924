"""A JAX program placed on the nodes of a group, and cut into one program for each.

`plan` traces a loss with its gradients and an optimizer's update, places operators, and gives a `Plan`: data that
engines execute. `plan.simulate` executes it in this process; `plan.programs` has what each node does.

    python -m dct_jax.partition plan dlrm --group 3 --svg plan.svg
"""

from dct_jax.partition import splits
from dct_jax.partition.costs import Machine, measure_machine
from dct_jax.partition.graph import train_net
from dct_jax.partition.loads import Codecs
from dct_jax.partition.placement import Nodes
from dct_jax.partition.plan import Plan, plan, plan_graph
from dct_jax.partition.precision import fcs_in
from dct_jax.partition.report import critical_path, explain, imbalance
from dct_jax.partition.rules import named
from dct_jax.partition.tags import on

__all__ = [
    'Codecs', 'Machine', 'Nodes', 'Plan', 'critical_path', 'explain', 'fcs_in', 'imbalance', 'measure_machine',
    'named', 'on', 'plan', 'plan_graph', 'train_net',
    'draw', 'files', 'ready', 'splits',  # modules
]
