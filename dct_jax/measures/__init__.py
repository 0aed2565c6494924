"""What models are judged by. NumPy and sacrebleu; no JAX in here."""
