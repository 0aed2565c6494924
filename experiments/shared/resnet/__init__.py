"""ResNet: the designs of a parameter server that are compared, and their figures."""
