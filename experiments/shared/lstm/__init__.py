"""The word language model: its training step for a configuration, and its evaluation."""
