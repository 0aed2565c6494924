"""Images: MNIST and CIFAR-10, and digits that stand in for them."""

__all__ = ['cifar', 'mnist']  # modules
