"""What the map of scale is made of: steps that all nodes take together, and nodes that do not wait for each other."""
