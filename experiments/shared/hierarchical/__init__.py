"""What experiments with hierarchical training share: the net, its plan, the machines."""
