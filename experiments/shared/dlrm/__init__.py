"""DLRM: its training step for a configuration, and evaluations that watch thresholds."""
