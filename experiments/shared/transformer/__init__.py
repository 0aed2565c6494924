"""The translation model: its training step for a configuration, its optimizer, its evaluation."""
