"""Models. They import JAX, flax and chex alone; what communicates is passed in."""

__all__ = [  # modules
    'batch_stats', 'coordinate_descent', 'decoding', 'densenet', 'dlrm', 'gnmt', 'language_loss', 'linear', 'lstm',
    'mlp', 'penalty', 'resnet', 'transformer', 'translation_loss',
]
